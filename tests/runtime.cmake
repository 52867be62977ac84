# The runtime: dispatch, checks of a call and NVRTC without a device; kernels and many processes on every device.
set(here ${CMAKE_CURRENT_LIST_DIR})
pagetune_test(runtime_dispatch_test ${here}/runtime_dispatch_test.cpp LIBS pagetune_tuner)
pagetune_test(runtime_launch_test ${here}/runtime_launch_test.cpp LIBS pagetune)

# The program that the tests start in other environments and many times at once. It lies beside them.
add_executable(runtime_helper ${here}/runtime_helper.cpp)
target_link_libraries(runtime_helper PRIVATE pagetune_tuner)

pagetune_test(runtime_cuda_test ${here}/runtime_cuda_test.cpp LIBS pagetune_tuner)
add_dependencies(runtime_cuda_test runtime_helper)

set_property(GLOBAL APPEND PROPERTY PAGETUNE_GPU_TESTS runtime_helper)
foreach(theme kernel processes)
  set_property(GLOBAL APPEND PROPERTY PAGETUNE_GPU_TESTS runtime_${theme}_test)
  pagetune_test(runtime_${theme}_test ${here}/runtime_${theme}_test.cpp LIBS attention_support)
  add_dependencies(runtime_${theme}_test runtime_helper)
  if(PAGETUNE_CPU_BACKEND)
    add_dependencies(runtime_${theme}_test pagetune_cpu)
    set_property(TEST runtime_${theme}_test APPEND PROPERTY ENVIRONMENT PAGETUNE_TEST_DEVICE=cpu)
  else()
    set_tests_properties(runtime_${theme}_test PROPERTIES DISABLED TRUE)
  endif()
  add_test(NAME gpu_runtime_${theme} COMMAND runtime_${theme}_test)
  set_tests_properties(gpu_runtime_${theme} PROPERTIES LABELS gpu TIMEOUT 300 SKIP_REGULAR_EXPRESSION "the device under test is absent"
    ENVIRONMENT "PAGETUNE_TEST_DEVICE=cuda:0;PAGETUNE_CACHE_DIR=${CMAKE_BINARY_DIR}/test-cache")
endforeach()
# LeakSanitizer stops a process's threads through ptrace, which fails now and then while sixteen processes end at once.
set_property(TEST runtime_processes_test APPEND PROPERTY ENVIRONMENT ASAN_OPTIONS=detect_leaks=0)
