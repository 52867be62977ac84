# Numerics of the attention kernels: the oracle and the harness by themselves, then the kernels on every device.
set(here ${CMAKE_CURRENT_LIST_DIR})
pagetune_test(attention_oracle_test ${here}/attention_oracle_test.cpp LIBS pagetune_tuner)
pagetune_test(attention_problem_test ${here}/attention_problem_test.cpp LIBS pagetune_tuner)
pagetune_test(attention_compile_test ${here}/attention_compile_test.cpp LIBS pagetune_tuner)

add_library(attention_support STATIC ${here}/attention_support.cpp)
target_link_libraries(attention_support PUBLIC pagetune_tuner GTest::gtest)

# One program per theme, run once for the CPU and once for the first GPU; without a GPU the second run is skipped and says why.
foreach(theme shapes faults addresses kernel)
  set_property(GLOBAL APPEND PROPERTY PAGETUNE_GPU_TESTS attention_${theme}_test)
  pagetune_test(attention_${theme}_test ${here}/attention_${theme}_test.cpp LIBS attention_support)
  if(PAGETUNE_CPU_BACKEND)
    set_property(TEST attention_${theme}_test APPEND PROPERTY ENVIRONMENT PAGETUNE_TEST_DEVICE=cpu)
  else()
    set_tests_properties(attention_${theme}_test PROPERTIES DISABLED TRUE)
  endif()
  add_test(NAME gpu_attention_${theme} COMMAND attention_${theme}_test)
  set_tests_properties(gpu_attention_${theme} PROPERTIES LABELS gpu TIMEOUT 300 SKIP_REGULAR_EXPRESSION "the device under test is absent"
    ENVIRONMENT "PAGETUNE_TEST_DEVICE=cuda:0;PAGETUNE_CACHE_DIR=${CMAKE_BINARY_DIR}/test-cache")
endforeach()
