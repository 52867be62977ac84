# Numerics of the attention kernels: the oracle and the harness by themselves, then the kernels on every device.
set(here ${CMAKE_CURRENT_LIST_DIR})
pagetune_test(attention_oracle_test ${here}/attention_oracle_test.cpp LIBS pagetune_tuner)
pagetune_test(attention_problem_test ${here}/attention_problem_test.cpp LIBS pagetune_tuner)
pagetune_test(attention_compile_test ${here}/attention_compile_test.cpp LIBS pagetune_tuner)

add_library(attention_support STATIC ${here}/attention_support.cpp)
target_link_libraries(attention_support PUBLIC pagetune_tuner GTest::gtest)

foreach(theme shapes faults windows queries logits addresses kernel)
  pagetune_device_test(attention ${theme} LIBS attention_support)
endforeach()
