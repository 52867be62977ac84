// What workers are asked and answer, as JSON. Both ends are the same program.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "codegen/binary.hpp"
#include "codegen/bucket.hpp"
#include "codegen/config.hpp"
#include "codegen/target.hpp"
#include "pagetune/error.hpp"
#include "pagetune/spec.hpp"
#include "tuner/policy.hpp"
#include "tuner/workbench.hpp"

namespace pagetune {

// What a worker works on: the first request to a new process, and again for another spec.
struct WorkerTask {
  std::string device_id;  // Device::id()
  Target target;          // of that device: a compile needs no more of it
  std::string store_dir;
  AttentionSpec spec;
  MeasurePolicy policy;
};

// What a worker answers: what was asked for, or the Error that its request ended with.
struct WorkerAnswer {
  nlohmann::json ok;
  std::optional<Error> error;
};
// Throws std::exception if the line is no answer to the request of this id: a worker that a kernel's fault has damaged may write anything.
WorkerAnswer answer_from_line(const std::string& line, int64_t id);

// A real number as text that gives back the same bits, also for what JSON does not have: NaN and infinities.
std::string real_text(double);
double real_from_text(const std::string&);  // Error invalid_argument

nlohmann::json task_to_json(const WorkerTask&);
WorkerTask task_from_json(const nlohmann::json&);
nlohmann::json facts_to_json(const LaunchFacts&);
LaunchFacts facts_from_json(const nlohmann::json&);
nlohmann::json verdict_to_json(const Verdict&);
Verdict verdict_from_json(const nlohmann::json&);
nlohmann::json configs_to_json(const std::vector<KernelConfig>&);
std::vector<KernelConfig> configs_from_json(const nlohmann::json&);
nlohmann::json bucket_to_json(Bucket);
Bucket bucket_from_json(const nlohmann::json&);

}  // namespace pagetune
