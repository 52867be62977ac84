# The runtime: dispatch, checks of a call and NVRTC without a device; kernels and many processes on every device.
set(here ${CMAKE_CURRENT_LIST_DIR})
pagetune_test(runtime_dispatch_test ${here}/runtime_dispatch_test.cpp ${here}/runtime_no_winners_test.cpp LIBS pagetune_tuner)
pagetune_test(runtime_launch_test ${here}/runtime_launch_test.cpp ${here}/runtime_once_table_test.cpp ${here}/runtime_untuned_test.cpp LIBS pagetune)

# The program that the tests start in other environments and many times at once. It lies beside them.
add_executable(runtime_helper ${here}/runtime_helper.cpp)
target_link_libraries(runtime_helper PRIVATE pagetune_tuner)

pagetune_test(runtime_cuda_test ${here}/runtime_cuda_test.cpp LIBS pagetune_tuner)
add_dependencies(runtime_cuda_test runtime_helper)

set_property(GLOBAL APPEND PROPERTY PAGETUNE_GPU_TESTS runtime_helper)
foreach(theme kernel processes)
  set(sources ${here}/runtime_${theme}_test.cpp)
  if(theme STREQUAL kernel)
    list(APPEND sources ${here}/runtime_stored_test.cpp)
  endif()
  pagetune_device_program(runtime_${theme}_test ${sources} LIBS attention_support)
  pagetune_device_entry(runtime_${theme}_test runtime_${theme})
  add_dependencies(runtime_${theme}_test runtime_helper)
endforeach()
# LeakSanitizer stops a process's threads through ptrace, which fails now and then while sixteen processes end at once.
set_property(TEST runtime_processes_test APPEND PROPERTY ENVIRONMENT ASAN_OPTIONS=detect_leaks=0)
