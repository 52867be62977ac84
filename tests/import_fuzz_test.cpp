// Deterministic mutations of the shipped configs.
#include <random>

#include "import_support.hpp"

using namespace pagetune;
using namespace import_support;

namespace {

// Bytes that change JSON's structure or numbers more often than random ones do.
char interesting_byte(std::mt19937& random) {
  static const std::string bytes = "{}[]\",:-+.eE0123456789ntf\\\n NaI*M\x80\xff";
  return bytes[random() % bytes.size()];
}

void mutate(std::string& text, std::mt19937& random) {
  size_t at = random() % text.size();
  switch (random() % 5) {
    case 0: text[at] = static_cast<char>(text[at] ^ (1 << random() % 8)); break;
    case 1: text.erase(at, 1 + random() % 12); break;
    case 2: text.insert(at, 1, interesting_byte(random)); break;
    case 3: text[at] = interesting_byte(random); break;
    default: text.insert(random() % text.size(), text.substr(at, random() % 24)); break;
  }
  if (text.empty()) text = "{";
}

// What every accepted config must satisfy.
void expect_sound(const ModelAttention& model, const std::string& text) {
  ASSERT_FALSE(model.groups.empty()) << text;
  std::vector<bool> seen(static_cast<size_t>(model.num_layers));
  for (const LayerGroup& group : model.groups) {
    ASSERT_GT(group.spec.kv_heads, 0) << text;
    ASSERT_EQ(group.spec.q_heads % group.spec.kv_heads, 0) << text;
    ASSERT_GT(group.spec.head_dim_k, 0) << text;
    ASSERT_GT(group.spec.head_dim_v, 0) << text;
    ASSERT_EQ(group.spec.window, group.window > 0) << text;
    ASSERT_EQ(group.spec.chunk, group.chunk > 0) << text;
    for (int layer : group.layers) {
      ASSERT_FALSE(seen.at(static_cast<size_t>(layer))) << text;
      seen[static_cast<size_t>(layer)] = true;
    }
  }
}

// Fault caught: a crash, another exception type, or a result that contradicts itself, on an input one slip away from a real file.
TEST(ImportFuzz, GivesAResultOrAnError) {
  std::mt19937 random(20240607);
  int accepted = 0, refused = 0;
  for (const auto& entry : std::filesystem::directory_iterator(models_folder())) {
    const std::string original = read_model(entry.path().stem());
    for (int round = 0; round < 300; ++round) {
      std::string text = original;
      for (auto n = 1 + random() % 4; n > 0; --n) mutate(text, random);
      try {
        expect_sound(import_text(text), text);
        ++accepted;
      } catch (const Error& error) {
        EXPECT_EQ(std::string(error.what()).rfind("c.json:", 0), 0U) << error.what();
        EXPECT_NE(error.code(), ErrorCode::internal) << error.what();
        ++refused;
      }
      if (HasFatalFailure()) return;
    }
  }
  // Mutations that are all refused, or none, would test one half only.
  EXPECT_GT(accepted, 1000);
  EXPECT_GT(refused, 1000);
}

}  // namespace
