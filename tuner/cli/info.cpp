#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "cache_db/store.hpp"
#include "codegen/generate.hpp"
#include "runtime/device.hpp"
#include "tuner/bandwidth.hpp"
#include "tuner/cli/exit_code.hpp"
#include "tuner/cli/verbs.hpp"
#include "tuner/cli/workset.hpp"

namespace pagetune::cli {
namespace {

using Json = nlohmann::ordered_json;

struct InfoArguments {
  bool json = false;
  bool cache_dir = false;
};

Json device_json(const std::string& id) {
  auto device = open_device(id);
  const Environment& environment = device->environment();
  const Target& target = device->target();
  return {{"id", id},
          {"device", environment.device},
          {"arch", target.arch},
          {"processors", target.processors},
          {"memory_bytes", environment.memory_bytes},
          {"l2_bytes", environment.l2_bytes},
          {"driver", environment.driver},
          {"compiler", device->compiler().identity()},
          {"environment", environment.key()},
          {"read_bytes_per_us", read_bandwidth(environment.device)}};
}

int run_info(const InfoArguments& arguments) {
  if (arguments.cache_dir) {
    fmt::print("{}\n", Store::default_dir());
    return kDone;
  }
  DeviceList list = list_devices();
  Json devices = Json::array();
  for (const std::string& id : list.ids) devices.push_back(device_json(id));
  auto store = Store::open();
  Store::Usage usage = store->usage();
  if (arguments.json) {
    fmt::print("{}\n", Json{{"devices", devices},
                            {"absent", list.absent},
                            {"generator", generator_hash()},
                            {"store", {{"dir", store->dir()}, {"winners", usage.winners}, {"binaries", usage.binaries}, {"binary_bytes", usage.binary_bytes}, {"problems", store->problems()}}}}
                               .dump(2));
    return kDone;
  }
  for (const Json& d : devices)
    fmt::print("{}: {}, {}, {} processors, {:.1f} GiB, {}{}\n", d["id"].get<std::string>(), d["device"].get<std::string>(), d["arch"].get<std::string>(),
               d["processors"].get<int>(), d["memory_bytes"].get<double>() / (1 << 30), d["compiler"].get<std::string>(),
               d["driver"].get<std::string>().empty() ? "" : ", driver " + d["driver"].get<std::string>());
  for (const std::string& reason : list.absent) fmt::print("absent: {}\n", reason);
  fmt::print("store {}: {} winners, {} binaries, {:.1f} MiB\n", store->dir(), usage.winners, usage.binaries, static_cast<double>(usage.binary_bytes) / (1 << 20));
  print_problems(*store);
  return kDone;
}

}  // namespace

void add_info(CLI::App& app, Run& run) {
  auto arguments = std::make_shared<InfoArguments>();
  CLI::App* verb = app.add_subcommand("info", "Show devices, compilers and the store");
  verb->add_flag("--json", arguments->json, "Print one JSON document");
  verb->add_flag("--print-cache-dir", arguments->cache_dir, "Print the store's directory and nothing else");
  verb->callback([=, &run] { run = [=] { return run_info(*arguments); }; });
}

}  // namespace pagetune::cli
