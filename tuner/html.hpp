// Text as HTML: what comes from data is never markup.
#pragma once
#include <string>
#include <string_view>

namespace pagetune {

// For element content and quoted attributes alike.
inline std::string html_escape(std::string_view text) {
  std::string escaped;
  for (const char c : text) switch (c) {
      case '&': escaped += "&amp;"; break;
      case '<': escaped += "&lt;"; break;
      case '>': escaped += "&gt;"; break;
      case '"': escaped += "&quot;"; break;
      case '\'': escaped += "&#39;"; break;
      default: escaped += c;
    }
  return escaped;
}

}  // namespace pagetune
