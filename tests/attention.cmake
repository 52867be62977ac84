# Numerics of the attention kernels: the oracle and the harness by themselves, then the kernels on every device.
set(here ${CMAKE_CURRENT_LIST_DIR})
pagetune_test(attention_oracle_test ${here}/attention_oracle_test.cpp LIBS pagetune_tuner)
pagetune_test(attention_problem_test ${here}/attention_problem_test.cpp ${here}/attention_bench_test.cpp LIBS pagetune_tuner)
pagetune_test(attention_compile_test ${here}/attention_compile_test.cpp LIBS pagetune_tuner)

add_library(attention_support STATIC ${here}/attention_support.cpp)
target_link_libraries(attention_support PUBLIC pagetune_tuner GTest::gtest)

foreach(theme shapes faults windows queries logits addresses kernel)
  pagetune_device_test(attention ${theme} LIBS attention_support)
endforeach()

# Random cases: a few with every test run on the CPU, as many as wanted by hand, also from the GPU bundle.
add_executable(attention_fuzz ${here}/attention_fuzz.cpp)
target_link_libraries(attention_fuzz PRIVATE pagetune_tuner)
set_property(GLOBAL APPEND PROPERTY PAGETUNE_GPU_TESTS attention_fuzz)
if(PAGETUNE_CPU_BACKEND)
  add_dependencies(attention_fuzz pagetune_cpu)
  add_test(NAME attention_fuzz COMMAND attention_fuzz --count 240 --seed 1 --device cpu)
  set_tests_properties(attention_fuzz PROPERTIES TIMEOUT 600 ENVIRONMENT "PAGETUNE_CACHE_DIR=${CMAKE_BINARY_DIR}/test-cache")
endif()
