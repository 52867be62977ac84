#include <gtest/gtest.h>

#include <map>
#include <set>

#include "pagetune/error.hpp"
#include "tuner/shard.hpp"

namespace pagetune {
namespace {

using Environ = std::map<std::string, std::string>;

std::optional<Shard> found(const Environ& environ, const std::string& option = "") {
  return find_shard(option, [&](const char* name) { return environ.contains(name) ? environ.at(name).c_str() : nullptr; });
}

std::string refused(const Environ& environ, const std::string& option = "") {
  try {
    found(environ, option);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
    return error.what();
  }
  return "";
}

void expect_shard(const Environ& environ, int index, int count, const std::string& origin) {
  std::optional<Shard> shard = found(environ);
  ASSERT_TRUE(shard.has_value()) << origin;
  EXPECT_EQ(shard->index, index);
  EXPECT_EQ(shard->count, count);
  EXPECT_EQ(shard->origin, origin);
}

const Environ kArray = {{"SLURM_ARRAY_TASK_ID", "7"}, {"SLURM_ARRAY_TASK_MIN", "1"}, {"SLURM_ARRAY_TASK_MAX", "9"}, {"SLURM_ARRAY_TASK_COUNT", "5"}, {"SLURM_ARRAY_TASK_STEP", "2"}};

Environ with(Environ base, const Environ& more) {
  for (const auto& [name, value] : more) base[name] = value;
  return base;
}

// Fault: text that is not i/N is taken for some shard, so that work is done twice or never.
TEST(Shard, TheOptionIsReadStrictly) {
  EXPECT_EQ(found({}, "3/10")->index, 3);
  EXPECT_EQ(found({}, "3/10")->count, 10);
  EXPECT_EQ(found(kArray, "0/1")->count, 1) << "the option goes before the environment";
  EXPECT_FALSE(found(kArray, "none").has_value());
  for (const char* wrong : {"3", "10/10", "-1/10", "1/0", "0/0", "1/10x", " 1/10", "1/ 10", "/", "1/", "/2", "1.0/2", "0x1/2", "+1/2", "None", "1/2/3", "1/1000001", "1/99999999999999999999"})
    EXPECT_NE(refused({}, wrong).find("0/10 to 9/10"), std::string::npos) << wrong;
}

// Faults: an array that does not begin at 0 or has a step loses its last tasks; an array with gaps does some work twice or never.
TEST(Shard, ASlurmArrayIsReadWithItsFirstTaskAndStep) {
  expect_shard(kArray, 3, 5, "Slurm array task 3 of 5");
  Environ plain = {{"SLURM_ARRAY_TASK_ID", "0"}, {"SLURM_ARRAY_TASK_MIN", "0"}, {"SLURM_ARRAY_TASK_COUNT", "100"}};
  expect_shard(plain, 0, 100, "Slurm array task 0 of 100");
  // --array=1,2,9: Slurm says that the step is 1
  EXPECT_NE(refused({{"SLURM_ARRAY_TASK_ID", "9"}, {"SLURM_ARRAY_TASK_MIN", "1"}, {"SLURM_ARRAY_TASK_COUNT", "3"}, {"SLURM_ARRAY_TASK_STEP", "1"}}).find("without gaps"), std::string::npos);
  EXPECT_NE(refused(with(kArray, {{"SLURM_ARRAY_TASK_ID", "2"}})).find("step is 2"), std::string::npos);
  EXPECT_NE(refused({{"SLURM_ARRAY_TASK_ID", "2"}}).find("SLURM_ARRAY_TASK_MIN is not set"), std::string::npos);
  EXPECT_NE(refused(with(kArray, {{"SLURM_ARRAY_TASK_COUNT", "many"}})).find("'many'"), std::string::npos);
}

// Fault: one task of a hundred that is submitted again takes itself for the only one, and does all work.
TEST(Shard, PagetuneShardsIsTheCountOfAnArrayOfWhichAPartRuns) {
  expect_shard({{"SLURM_ARRAY_TASK_ID", "42"}, {"SLURM_ARRAY_TASK_MIN", "42"}, {"SLURM_ARRAY_TASK_COUNT", "1"}, {"PAGETUNE_SHARDS", "100"}}, 42, 100, "Slurm array task 42 of 100");
  EXPECT_NE(refused({{"SLURM_ARRAY_TASK_ID", "100"}, {"PAGETUNE_SHARDS", "100"}}).find("from 0 to N-1"), std::string::npos);
  EXPECT_FALSE(found({{"PAGETUNE_SHARDS", "100"}}).has_value()) << "a count alone is no shard";
}

// Fault: every pod of an indexed Job silently does all work.
TEST(Shard, AKubernetesIndexNeedsTheCount) {
  expect_shard({{"JOB_COMPLETION_INDEX", "2"}, {"PAGETUNE_SHARDS", "4"}}, 2, 4, "Kubernetes completion 2 of 4");
  EXPECT_NE(refused({{"JOB_COMPLETION_INDEX", "2"}}).find("set PAGETUNE_SHARDS to the Job's completions"), std::string::npos);
  EXPECT_NE(refused({{"JOB_COMPLETION_INDEX", "4"}, {"PAGETUNE_SHARDS", "4"}}).find("number 4 of 4"), std::string::npos);
  EXPECT_NE(refused({{"JOB_COMPLETION_INDEX", "0"}, {"PAGETUNE_SHARDS", "0"}}), "");
}

// Faults: a single process under mpirun is said to be a shard; a batch script, which is one process, does only the first task's part.
TEST(Shard, RanksCountOnlyWhereThereAreSeveral) {
  expect_shard({{"OMPI_COMM_WORLD_RANK", "1"}, {"OMPI_COMM_WORLD_SIZE", "4"}}, 1, 4, "Open MPI rank 1 of 4");
  expect_shard({{"PMI_RANK", "3"}, {"PMI_SIZE", "4"}}, 3, 4, "MPI rank 3 of 4");
  expect_shard({{"SLURM_PROCID", "1"}, {"SLURM_NTASKS", "2"}, {"SLURM_STEP_ID", "0"}}, 1, 2, "Slurm task 1 of 2");
  EXPECT_FALSE(found({{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "2"}}).has_value()) << "a batch script is not a step";
  EXPECT_FALSE(found({{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "1"}, {"SLURM_STEP_ID", "0"}}).has_value());
  EXPECT_FALSE(found({{"OMPI_COMM_WORLD_RANK", "0"}, {"OMPI_COMM_WORLD_SIZE", "1"}}).has_value());
  EXPECT_FALSE(found({{"SLURM_ARRAY_TASK_ID", ""}, {"JOB_COMPLETION_INDEX", ""}}).has_value()) << "empty is unset";
  EXPECT_FALSE(found({}).has_value());
}

// Fault: all ranks of an array's task do the same work.
TEST(Shard, RanksDivideTheirArrayTask) {
  std::set<int> seen;
  for (int task = 1; task <= 9; task += 2)
    for (int rank = 0; rank < 3; ++rank)
      seen.insert(found(with(kArray, {{"SLURM_ARRAY_TASK_ID", std::to_string(task)}, {"OMPI_COMM_WORLD_RANK", std::to_string(rank)}, {"OMPI_COMM_WORLD_SIZE", "3"}}))->index);
  EXPECT_EQ(seen.size(), 15u);
  EXPECT_EQ(*seen.rbegin(), 14);
}

// Faults: a bucket falls into two shards or none; its shard depends on the list or the machine, or changes with a release, so that machines disagree.
TEST(Shard, TheShardOfAPairIsStableAndSpread) {
  EXPECT_EQ(shard_of("a", {0, 10}, 1'000'000), 994700);
  std::map<int, int> sizes;
  WorkList all;
  for (int page : {16, 32, 64})
    for (int batch = 0; batch < 8; ++batch)
      for (int len = 8; len < 18; ++len) {
        AttentionSpec spec;
        spec.page_size = page;
        all.works.push_back({spec, {batch, len}, {0}});
      }
  size_t total = 0;
  for (int i = 0; i < 7; ++i) {
    WorkList part = all;
    keep_shard(part, {i, 7, ""});
    total += part.works.size();
    for (const Work& work : part.works) EXPECT_EQ(shard_of(spec_key(work.spec), work.bucket, 7), i);
    EXPECT_GT(part.works.size(), 15u) << "of 240 buckets in 7 shards";
  }
  EXPECT_EQ(total, all.works.size());
}

WorkList works_of(std::initializer_list<int> lens_log2, int page = 16) {
  WorkList list;
  AttentionSpec spec;
  spec.page_size = page;
  for (int len : lens_log2) list.works.push_back({spec, {0, len}, {0}});
  return list;
}

std::string lens(const WorkList& list) {
  std::string text;
  for (const Work& work : list.works) text += (text.empty() ? "" : " ") + std::to_string(work.bucket.len_log2);
  return text;
}

// Fault: devices of one kind tune a bucket twice or not at all, one has much more to do than the other, or gets what its memory does not hold.
TEST(Deal, DevicesOfOneKindShareOutTheirWorks) {
  WorkList a = works_of({8, 9, 10, 11, 12}), b = a, c = a;
  deal_works({&a, &b, &c});
  EXPECT_EQ(lens(a) + "|" + lens(b) + "|" + lens(c), "8 11|9 12|10");

  WorkList large = works_of({8, 9, 10, 11, 12, 13}), small = works_of({8, 9, 10});
  deal_works({&large, &small});
  EXPECT_EQ(lens(large) + "|" + lens(small), "11 12 13|8 9 10");
  small = works_of({8, 9, 10}), large = works_of({8, 9, 10, 11, 12, 13});
  deal_works({&small, &large});
  EXPECT_EQ(lens(small) + "|" + lens(large), "8 9 10|11 12 13");

  WorkList alone = works_of({8, 9}), none, one = works_of({8});
  deal_works({&alone});
  EXPECT_EQ(lens(alone), "8 9");
  deal_works({&none, &one});
  EXPECT_EQ(lens(none) + "|" + lens(one), "|8");

  WorkList other_page = works_of({8}, 64), pages = works_of({8}, 16);
  deal_works({&other_page, &pages});
  EXPECT_EQ(lens(other_page) + "|" + lens(pages), "8|8") << "another spec is another work";
}

}  // namespace
}  // namespace pagetune
