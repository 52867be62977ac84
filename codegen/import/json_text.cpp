#include "codegen/import/json_text.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>
#include <vector>

#include "codegen/json_structure.hpp"
#include "pagetune/error.hpp"

namespace pagetune::importer {
namespace {

using nlohmann::json;

[[noreturn]] void refuse(const std::string& message) { throw Error(ErrorCode::invalid_argument, message); }

struct QuotedText {
  std::string text;
  std::vector<size_t> quotes;  // offsets in `text` of the quotes that the original does not have, ascending
};

QuotedText quote_non_finite(const std::string& text) {
  constexpr std::string_view kNonFinite[] = {"-Infinity", "Infinity", "NaN"};
  QuotedText out;
  out.text.reserve(text.size() + 16);
  bool in_string = false;
  for (size_t i = 0; i < text.size();) {
    if (!in_string) {
      std::string_view rest = std::string_view(text).substr(i, 9);
      const auto* word = std::find_if(std::begin(kNonFinite), std::end(kNonFinite), [&](std::string_view w) { return rest.starts_with(w); });
      if (word != std::end(kNonFinite)) {
        out.quotes.push_back(out.text.size());
        out.text.append("\"").append(*word);
        out.quotes.push_back(out.text.size());
        out.text.append("\"");
        i += word->size();
        continue;
      }
    }
    if (in_string && text[i] == '\\' && i + 1 < text.size()) out.text.push_back(text[i++]);
    else if (text[i] == '"') in_string = !in_string;
    out.text.push_back(text[i++]);
  }
  return out;
}

std::string line_and_column(const std::string& text, size_t offset) {
  offset = std::min(offset, text.size());
  auto end = text.begin() + static_cast<std::ptrdiff_t>(offset);
  auto line = 1 + std::count(text.begin(), end, '\n');
  size_t line_start = offset == 0 ? std::string::npos : text.rfind('\n', offset - 1);
  size_t column = line_start == std::string::npos ? offset + 1 : offset - line_start;
  return fmt::format("{}:{}", line, column);
}

// The parser's sentence without its prefix ("[json.exception…] parse error at line …: "), short and printable whatever the input was.
std::string reason_of(std::string message) {
  size_t colon = message.find(": ");
  if (colon == std::string::npos) colon = message.find("] ");
  if (colon != std::string::npos) message.erase(0, colon + 2);
  constexpr size_t kLongest = 160;
  if (message.size() > kLongest) message = message.substr(0, kLongest) + "…";
  for (size_t i = 0; i < std::min(message.size(), kLongest); ++i) {
    if (message[i] < 0x20 || message[i] > 0x7e) message[i] = '?';
  }
  return message;
}

// Everything that json::parse() would not check, with places in the original text.
class Checker final : public JsonStructure {
 public:
  Checker(const std::string& file, const std::string& original, const std::vector<size_t>& quotes)
      : JsonStructure(kMaxConfigLevels), file_(file), original_(original), quotes_(quotes) {}

  bool parse_error(size_t bytes_read, const std::string&, const nlohmann::detail::exception& error) override {
    size_t offset = bytes_read == 0 ? 0 : bytes_read - 1;
    auto added = std::lower_bound(quotes_.begin(), quotes_.end(), offset) - quotes_.begin();
    refuse(fmt::format("{}:{}: this is not valid JSON: {}", file_, line_and_column(original_, offset - static_cast<size_t>(added)),
                       reason_of(error.what())));
  }

 private:
  [[noreturn]] void duplicate_key(const std::string& quoted) override {
    refuse(fmt::format("{}: the key {} stands twice in one object; keep one of them", file_, quoted));
  }
  [[noreturn]] void too_deep(size_t max_levels) override {
    refuse(fmt::format("{}: objects and arrays are nested more than {} levels deep; a model config needs fewer than 10", file_, max_levels));
  }

  const std::string& file_;
  const std::string& original_;
  const std::vector<size_t>& quotes_;
};

}  // namespace

json parse_config_text(const std::string& file, const std::string& text) {
  if (text.size() > kMaxConfigBytes) {
    refuse(fmt::format("{}: {} bytes long; a model config of at most {} bytes is allowed", file, text.size(), kMaxConfigBytes));
  }
  if (text.starts_with("\xEF\xBB\xBF") || text.starts_with("\xFF\xFE") || text.starts_with("\xFE\xFF")) {
    refuse(fmt::format("{}:1:1: the file starts with a byte-order mark; save it as UTF-8 without one", file));
  }
  QuotedText quoted = quote_non_finite(text);
  Checker checker(file, text, quoted.quotes);
  json::sax_parse(quoted.text, &checker);
  json root = json::parse(quoted.text);
  if (!root.is_object()) refuse(fmt::format("{}: the document is {}; a JSON object is allowed", file, root.type_name()));
  return root;
}

}  // namespace pagetune::importer
