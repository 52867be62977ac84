#include "codegen/fastdeploy.hpp"
#include "codegen/fastdeploy_file.hpp"
#include "one.hpp"

using namespace pagetune;
using namespace pagetune::fastdeploy;

namespace {

int64_t count(const std::vector<Entry>& entries) {
  int64_t sum = 0;
  for (const Entry& entry : entries) sum += instantiations(entry);
  return sum;
}

// Some of each entry's instantiations: 64 at most, which lie apart.
std::set<Instance> some_of(const std::vector<Entry>& entries) {
  std::set<Instance> chosen;
  for (size_t i = 0; i < entries.size(); ++i) {
    const int64_t all = instantiations(entries[i]);
    for (int64_t n = 0; n < all; n += 1 + all / 64) {
      Instance instance{i, {static_cast<size_t>(n) % entries[i].data_types.size()}};
      auto rest = static_cast<size_t>(n) / entries[i].data_types.size();
      for (const Entry::Parameter& param : entries[i].dispatch_params) {
        instance.at.push_back(rest % param.values.size());
        rest /= param.values.size();
      }
      chosen.insert(instance);
    }
  }
  return chosen;
}

}  // namespace

void fuzz_one(const std::string& input) {
  fuzz::refuses_with_a_sentence([&] {
    const std::vector<Entry> entries = read_template_config("the input", input);
    const std::string text = template_config_text(entries);
    fuzz::require(template_config_text(read_template_config("the same", text)) == text, "a written file is read as it was written");
    for (const Entry& entry : entries) {
      const Coverage coverage = fastdeploy::coverage(entry, Target::by_name("sm_90a"));
      int64_t all = coverage.covered;
      for (const auto& [reason, number] : coverage.refused) all += number;
      fuzz::require(all == instantiations(entry), "each instantiation is covered or has a reason");
      fuzz::require(files(entry) >= 1 && files(entry) <= instantiations(entry), "each file has an instantiation");
    }
    const std::set<Instance> chosen = some_of(entries);
    const std::vector<Entry> part = pruned(entries, chosen);
    fuzz::require(count(part) == static_cast<int64_t>(chosen.size()), "a pruned file has as many instantiations as were chosen");
    fuzz::require(count(read_template_config("a pruned file", template_config_text(part))) == count(part), "a pruned file can be read");
  });
}
