// A second translation unit with the exported header, with the macros that kernels' sources like to have.
#define GROUP_SIZE 4
#define HEAD_DIM 128
#define BLOCK_SIZE 16
#define CAUSAL 1
#define KV_HEADS 8
#define VARIANT 2
#include "pagetune_tables.hpp"
#include "pagetune_tables.hpp"

int answers_at_compile_time() {
  constexpr const pagetune_tables::Table& table = pagetune_tables::tables[0];
  constexpr pagetune_tables::Answer answer = pagetune_tables::lookup(table.device->key, table.spec_key, 1, 1024);
  static_assert(answer && answer.config->get("VARIANT") > 0 && answer.config->get("NO_SUCH_PARAMETER", -1) == -1);
  return answer.config->get("VARIANT");
}
