#include "tuner/report.hpp"

#include <algorithm>
#include <set>
#include <tuple>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "codegen/generate.hpp"
#include "codegen/launch_plan.hpp"
#include "codegen/space.hpp"
#include "tuner/heat_map.hpp"
#include "tuner/html.hpp"
#include "tuner/policy.hpp"
#include "tuner/statistics.hpp"
#include "tuner/worklist.hpp"

// tuner/report_page/, see CMakeLists.txt.
extern "C" const char pt_report_style_begin[], pt_report_style_end[], pt_report_script_begin[], pt_report_script_end[];

namespace pagetune {
namespace {

using Rows = std::vector<const Store::Row*>;

// A gain of this share of the default's time has the map's strongest colour.
constexpr double kStrongGain = 0.1;

double kv_bytes_of(const Store::Row& row) { return static_cast<double>(kv_bytes(row.spec, static_cast<int64_t>(row.winner.bucket.batch()) * row.winner.bucket.len())); }
double gb_per_s(const Store::Row& row) { return kv_bytes_of(row) / row.winner.median_us / 1000; }
double share_of_floor(const Winner& w) { return w.floor_us / w.median_us; }
bool has_gain(const Winner& w) { return w.default_us > 0; }
double gain(const Winner& w) { return 1 - w.median_us / w.default_us; }
std::string rate_text(double rate) { return rate < 100 ? fmt::format("{:.3g}", rate) : fmt::format("{:.0f}", rate); }
std::string percent(double share) { return fmt::format("{:.1f} %", 100 * share); }
// Without a sign on nothing.
std::string gain_text(double share) { return percent(std::abs(share) < 0.0005 ? 0 : share); }

std::string schedule_text(const KernelConfig& config) {
  if (config.variant() == 1) return "V1";
  return config.even_share() ? fmt::format("V2 {}/4", spread_of(config)) : fmt::format("V2 ×{}", config.num_splits());
}

int schedule_kind(const KernelConfig& config) { return config.variant() == 1 ? 1 : config.even_share() ? 3 : 2; }

// "NUM_WARPS 4, TILE_KV 16"; with `other`, only what differs from it.
std::string values_text(const KernelConfig& config, const KernelConfig* other = nullptr) {
  std::string text;
  for (const auto& [name, value] : config.values())
    if (other != nullptr ? !other->values().contains(name) || other->at(name) != value : name != "VARIANT" && name != "NUM_SPLITS" && name != "CTA_QUARTERS")
      text += fmt::format("{}{} {}", text.empty() ? "" : ", ", name, value);
  return text;
}

std::string detail_of(const Store::Row& row) {
  const Winner& w = row.winner;
  std::string text = fmt::format("batch {}, length {}: {:.2f} µs ({:.2f} to {:.2f}), {} GB/s", w.bucket.batch(), w.bucket.len(), w.median_us, w.ci_low_us, w.ci_high_us, rate_text(gb_per_s(row)));
  if (w.floor_us > 0) text += fmt::format(", {} of the floor", percent(share_of_floor(w)));
  if (has_gain(w)) text += fmt::format("; default {:.2f} µs", w.default_us);
  return text + fmt::format("; {}, {}", schedule_text(w.config), values_text(w.config));
}

template <class Fill>
std::vector<HeatCell> cells_of(const Rows& rows, const Fill& fill) {
  std::vector<HeatCell> cells;
  for (const Store::Row* row : rows) {
    HeatCell cell;
    cell.bucket = row->winner.bucket;
    cell.detail = detail_of(*row);
    fill(cell, *row);
    cells.push_back(cell);
  }
  return cells;
}

std::string figure(const std::string& title, const std::string& body, const std::string& caption) {
  return fmt::format("<figure><h4>{}</h4>\n{}<figcaption>{}</figcaption></figure>\n", title, body, caption);
}

std::string scale_legend(const std::string& low, const std::string& high) { return fmt::format(R"(<div class="legends"><span class="legend">{} <i class="ramp"></i> {}</span><span class="legend"><i class="gap"></i> not tuned</span></div>)", low, high); }

// The floor where it is known, else the rate.
std::string speed_map(const Rows& rows) {
  if (std::any_of(rows.begin(), rows.end(), [](const auto* row) { return row->winner.floor_us > 0; })) {
    const std::string svg = heat_map_svg("Share of the read floor", cells_of(rows, [](HeatCell& cell, const Store::Row& row) {
                                           const Winner& w = row.winner;
                                           if (w.floor_us <= 0) return;
                                           cell.level = share_of_floor(w);
                                           cell.label = fmt::format("{:.0f} %", 100 * share_of_floor(w));
                                         }));
    return figure("Share of the read floor", svg, scale_legend("0 %", "100 %") + "The floor is the time that reading K and V takes at the device’s measured bandwidth.");
  }
  double most = 0;
  for (const Store::Row* row : rows) most = std::max(most, gb_per_s(*row));
  const std::string svg = heat_map_svg("Rate of reading K and V", cells_of(rows, [&](HeatCell& cell, const Store::Row& row) {
                                         cell.level = gb_per_s(row) / most;
                                         cell.label = rate_text(gb_per_s(row));
                                       }));
  return figure("Rate of reading K and V, GB/s", svg, scale_legend("0", rate_text(most) + " GB/s") + "Nobody has measured this device’s bandwidth, so there is no floor to compare with.");
}

std::string gain_map(const Rows& rows) {
  const std::string svg = heat_map_svg("Gain over the default", cells_of(rows, [](HeatCell& cell, const Store::Row& row) {
                                         if (!has_gain(row.winner)) return;
                                         cell.level = gain(row.winner) / kStrongGain;
                                         cell.label = cell.level > 0 ? fmt::format("{:.1f} %", 100 * gain(row.winner)) : "0";
                                       }));
  return figure("Gain over the default", svg, scale_legend("0 %", fmt::format("{:.0f} % and more", 100 * kStrongGain)) + "Time that tuning saves against the config that is chosen without any measurement.");
}

std::string schedule_map(const Rows& rows) {
  const std::string svg = heat_map_svg("Schedule that won", cells_of(rows, [](HeatCell& cell, const Store::Row& row) {
                                         cell.kind = schedule_kind(row.winner.config);
                                         cell.region = row.winner.config.variant();
                                         cell.label = schedule_text(row.winner.config);
                                       }));
  return figure("Schedule that won", svg,
                R"(<div class="legends"><span class="legend"><i class="kind1"></i> V1: one pass</span><span class="legend"><i class="kind2"></i> V2 ×n: n splits of each sequence</span><span class="legend"><i class="kind3"></i> V2 n/4: an even share of all tiles</span></div>An even share has n CTAs for every four processors. The thick line is the crossover between V1 and V2.)");
}

std::string winners_table(const Rows& rows) {
  std::string html = "<div class=\"box\"><table class=\"winners\"><thead><tr>";
  for (const std::string name : {">batch", ">length", "schedule", "config", ">median µs", ">95 % interval", ">samples", ">of floor", ">default µs", ">gain", ">tied", "runner-up", ">its gap", "reason", ">error"})
    html += name.starts_with('>') ? fmt::format(R"(<th scope="col" class="num">{}</th>)", name.substr(1)) : fmt::format(R"(<th scope="col">{}</th>)", name);
  html += "</tr></thead><tbody>\n";
  for (const Store::Row* row : rows) {
    const Winner& w = row->winner;
    const auto text = [&](const std::string& value) { html += "<td>" + html_escape(value) + "</td>"; };
    const auto number = [&](const std::string& value, double key) { html += fmt::format(R"(<td class="num" data-key="{}">{}</td>)", key, value); };
    const auto absent = [&] { html += R"(<td class="num" data-key="-1">–</td>)"; };
    html += fmt::format(R"(<tr data-bucket="{}">)", w.bucket.text());
    number(fmt::format("{}", w.bucket.batch()), w.bucket.batch());
    number(fmt::format("{}", w.bucket.len()), w.bucket.len());
    html += fmt::format(R"(<td><span class="tag kind{}">{}</span></td>)", schedule_kind(w.config), schedule_text(w.config));
    text(values_text(w.config));
    number(fmt::format("{:.2f}", w.median_us), w.median_us);
    number(fmt::format("{:.2f} to {:.2f}", w.ci_low_us, w.ci_high_us), w.ci_low_us);
    number(fmt::format("{}", w.samples), w.samples);
    w.floor_us > 0 ? number(percent(share_of_floor(w)), share_of_floor(w)) : absent();
    has_gain(w) ? number(fmt::format("{:.2f}", w.default_us), w.default_us) : absent();
    has_gain(w) ? number(gain_text(gain(w)), gain(w)) : absent();
    number(fmt::format("{}", w.tied), w.tied);
    if (w.runner_up.values().empty() || w.runner_up_us <= 0) {
      text("none");
      absent();
    } else {
      text(values_text(w.runner_up, &w.config));
      number(fmt::format("{:+.1f} %", 100 * (w.runner_up_us / w.median_us - 1)), w.runner_up_us / w.median_us - 1);
    }
    text(w.reason);
    number(fmt::format("{:.1e}", w.error), w.error);
    html += "</tr>\n";
  }
  return html + "</tbody></table></div>\n";
}

// The family whose space the winners were taken from; none if this build's is another one.
const Family* family_of(const Rows& rows) {
  const ConfigSpace& space = ConfigSpace::builtin();
  const Store::Row& first = *rows.front();
  const Family* family = nullptr;
  for (const Family& one : space.families())
    if (one.name == fmt::format("{}_{}", name_of(first.spec.kind), first.environment.backend)) family = &one;
  if (family == nullptr) return nullptr;
  const std::string hash = space.hash(*family);
  return std::all_of(rows.begin(), rows.end(), [&](const auto* row) { return row->winner.space_hash == hash; }) ? family : nullptr;
}

std::string values_that_won(const Rows& rows) {
  std::map<std::string, std::map<int, int>> counts;  // parameter -> value -> winners
  for (const Store::Row* row : rows)
    for (const auto& [name, value] : row->winner.config.values()) ++counts[name][value];
  const Family* family = family_of(rows);
  if (family != nullptr)
    for (const auto& [name, values] : family->tuning_params)
      for (const int value : values) counts[name][value] += 0;
  std::string html = "<details open><summary>Which values won</summary>\n<p class=\"note\">";
  html += fmt::format("Of each parameter, in how many of the {} buckets a value won. The store keeps winners and runners-up, not what every candidate took: these are counts, not effects. {}</p>\n<div class=\"parameters\">\n", rows.size(),
                      family != nullptr ? "A value without a bar never won." : "The config space has changed since, so values that never won are not shown.");
  for (const auto& [name, values] : counts) {
    html += fmt::format(R"(<div class="parameter" data-name="{}"><h5>{}</h5><div class="bars">)", html_escape(name), html_escape(name));
    for (const auto& [value, count] : values)
      html += fmt::format(R"(<div class="bar{}"><b>{}</b><i style="height:{:.1f}%"></i><span>{}</span></div>)", count == 0 ? " never" : "", count, 100.0 * count / static_cast<double>(rows.size()), value);
    html += "</div></div>\n";
  }
  return html + "</div></details>\n";
}

std::string kernel_section(const Rows& rows, const ReportInput& input) {
  const Store::Row& first = *rows.front();
  const auto layers = input.layers.find(first.winner.spec_key);
  std::string html = fmt::format("<article class=\"kernel\">\n<h3>{}{}</h3>\n", html_escape(spec_text(first.spec)), layers == input.layers.end() ? "" : fmt::format(" <small>{}</small>", html_escape(layers->second)));
  html += "<div class=\"figures\">\n" + speed_map(rows) + gain_map(rows) + schedule_map(rows) + "</div>\n";
  html += "<p class=\"detail\" aria-live=\"polite\">Point at a cell or tap it for its winner; a heading of the table sorts it.</p>\n";
  return html + winners_table(rows) + values_that_won(rows) + "</article>\n";
}

std::string tile(const std::string& value, const std::string& what) { return fmt::format("<div class=\"tile\"><b>{}</b><span>{}</span></div>\n", value, what); }

std::string tiles(const Rows& rows, size_t kernels) {
  std::vector<double> shares, gains;
  double error = 0;
  std::map<int, int> variants;
  for (const Store::Row* row : rows) {
    const Winner& w = row->winner;
    if (w.floor_us > 0) shares.push_back(share_of_floor(w));
    if (has_gain(w)) gains.push_back(gain(w));
    error = std::max(error, w.error);
    ++variants[w.config.variant()];
  }
  std::string html = "<div class=\"tiles\">\n" + tile(fmt::format("{}", rows.size()), fmt::format("buckets tuned of {} kernel{}", kernels, kernels == 1 ? "" : "s"));
  if (!shares.empty()) html += tile(fmt::format("{:.0f} %", 100 * median(shares)), fmt::format("of the read floor in the median bucket, {:.0f} % in the best", 100 * *std::max_element(shares.begin(), shares.end())));
  if (!gains.empty())
    html += tile(fmt::format("{} of {}", std::count_if(gains.begin(), gains.end(), [](double share) { return share > 0; }), gains.size()),
                 fmt::format("buckets beat the default, the best by {}", gain_text(*std::max_element(gains.begin(), gains.end()))));
  html += tile(fmt::format("{} : {}", variants[1], variants[2]), "buckets in one pass (V1) : split (V2)");
  return html + tile(fmt::format("{:.2g}", error), "largest relative error against the fp64 oracle") + "</div>\n";
}

std::string fact(const std::string& name, const std::string& value) { return fmt::format("<dt>{}</dt><dd>{}</dd>\n", html_escape(name), html_escape(value)); }

// What each winner was measured with, and whether this build would measure it in the same way.
std::string provenance(const Rows& rows) {
  std::set<std::string> policies, sessions;
  size_t older = 0;
  for (const Store::Row* row : rows) {
    policies.insert(row->winner.policy_hash);
    sessions.insert(row->winner.session);
    older += row->winner.generator_hash != generator_hash() || family_of({row}) == nullptr;
  }
  const MeasurePolicy own = MeasurePolicy::for_backend(rows.front()->environment.backend == "cpu" ? Backend::cpu : Backend::cuda);
  std::string html;
  for (const std::string& policy : policies) {
    html += fact("measuring policy", policy.substr(0, 12) + (policy == own.hash() ? ", this build’s" : ", not this build’s: its values are not stored"));
    if (policy != own.hash()) continue;
    const auto values = nlohmann::json::parse(own.canonical_json());
    for (const auto& [name, value] : values.items()) html += fact("· " + name, value.dump());
  }
  html += fact("kernels", older == 0 ? "all measured with this build’s kernel generator and config space" : fmt::format("{} of {} winners were measured with another kernel generator or config space than this build’s", older, rows.size()));
  for (const std::string& session : sessions) html += fact("measured by", session);
  return html;
}

std::string environment_facts(const Environment& environment) {
  std::string html;
  const auto values = nlohmann::json::parse(environment.canonical_json());
  for (const auto& [name, value] : values.items()) {
    const std::string text = value.is_string() ? value.get<std::string>() : value.dump();
    if (!text.empty() && text != "0") html += fact(name, text);
  }
  return html;
}

std::string device_section(const Rows& rows, const ReportInput& input) {
  const Environment& environment = rows.front()->environment;
  std::string html = fmt::format("<section class=\"device\">\n<h2>{}</h2>\n<p class=\"chips\">", html_escape(environment.device));
  for (const std::string& chip : {environment.arch, fmt::format("{} processors", environment.processors), environment.driver.empty() ? "" : "driver " + environment.driver, environment.compiler})
    if (!chip.empty()) html += fmt::format("<span>{}</span>", html_escape(chip));
  html += "</p>\n";
  std::vector<Rows> kernels;  // rows come sorted by kernel
  for (const Store::Row* row : rows) {
    if (kernels.empty() || kernels.back().front()->winner.spec_key != row->winner.spec_key) kernels.emplace_back();
    kernels.back().push_back(row);
  }
  html += tiles(rows, kernels.size());
  for (const Rows& kernel : kernels) html += kernel_section(kernel, input);
  return html + "<details><summary>Environment and measuring policy</summary>\n<dl>\n" + environment_facts(environment) + provenance(rows) + "</dl></details>\n</section>\n";
}

}  // namespace

std::string report_html(ReportInput input) {
  std::sort(input.rows.begin(), input.rows.end(), [](const Store::Row& a, const Store::Row& b) {
    const auto order = [](const Store::Row& row) { return std::tuple(row.environment.device, row.winner.env_key, spec_text(row.spec), row.winner.spec_key, row.winner.bucket); };
    return order(a) < order(b);
  });
  std::vector<Rows> devices;
  for (const Store::Row& row : input.rows) {
    if (devices.empty() || devices.back().front()->winner.env_key != row.winner.env_key) devices.emplace_back();
    devices.back().push_back(&row);
  }
  const std::string title = html_escape(input.title);
  // The policy of the page forbids it to load anything, whatever its text may hold.
  std::string html = "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
                     "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:\">\n"
                     "<meta name=\"color-scheme\" content=\"light dark\">\n<link rel=\"icon\" href=\"data:,\">\n";
  html += "<title>" + title + " – pagetune</title>\n<style>\n" + std::string(pt_report_style_begin, pt_report_style_end) + "</style>\n</head>\n<body>\n<main>\n";
  html += "<header><p class=\"brand\">pagetune · tuned attention kernels</p><h1>" + title + "</h1></header>\n";
  for (const Rows& rows : devices) html += device_section(rows, input);
  return html + "<footer>Times are medians with distribution-free 95 % intervals; every kernel was checked against an fp64 oracle before it was timed.</footer>\n</main>\n<script>\n" + std::string(pt_report_script_begin, pt_report_script_end) +
         "</script>\n</body>\n</html>\n";
}

}  // namespace pagetune
