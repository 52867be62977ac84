# Numerics of the attention kernels: the oracle and the harness by themselves, then the kernels on every device.
set(here ${CMAKE_CURRENT_LIST_DIR})
pagetune_test(attention_oracle_test ${here}/attention_oracle_test.cpp LIBS pagetune_tuner)
pagetune_test(attention_problem_test ${here}/attention_problem_test.cpp ${here}/attention_bench_test.cpp LIBS pagetune_tuner)
pagetune_test(attention_schedule_test ${here}/attention_schedule_test.cpp ${here}/schedule_uniform.cpp ${here}/schedule_windowed.cpp ${here}/schedule_headwise.cpp ${here}/schedule_chunked.cpp LIBS pagetune_options)
target_include_directories(attention_schedule_test SYSTEM PRIVATE ${PROJECT_SOURCE_DIR}/templates)

add_library(attention_support STATIC ${here}/attention_support.cpp)
target_link_libraries(attention_support PUBLIC pagetune_tuner GTest::gtest)
pagetune_test(attention_compile_test ${here}/attention_compile_test.cpp LIBS attention_support)

# One program, since each carries the whole library; a CTest entry for each theme, which is a suite of a file of its own.
set(themes shapes faults windows queries logits addresses kernel plans hidden)
set(suites Shapes Faults Windows Queries Logits Addresses KernelOnDevice EveryPlan Hidden)
list(TRANSFORM themes REPLACE "(.+)" "${here}/attention_\\1_test.cpp" OUTPUT_VARIABLE sources)
pagetune_device_program(attention_device_test ${sources} LIBS attention_support)
foreach(theme suite IN ZIP_LISTS themes suites)
  pagetune_device_entry(attention_device_test attention_${theme} ${suite}.*)
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
