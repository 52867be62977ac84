file(GLOB store_tests CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/store_*_test.cpp)
pagetune_test(store_test ${store_tests} LIBS pagetune_archive SQLiteCpp)
target_compile_definitions(store_test PRIVATE TEST_DATA_DIR="${CMAKE_CURRENT_SOURCE_DIR}")

# The program that the fault tests start many times, kill and stop, and whose system calls fail when they are told to.
add_executable(store_helper ${CMAKE_CURRENT_SOURCE_DIR}/faults/store_helper.cpp ${CMAKE_CURRENT_SOURCE_DIR}/faults/failing_calls.c)
target_link_libraries(store_helper PRIVATE pagetune_store)

foreach(theme corruption places processes kills waits clock keys errors)
  pagetune_test(store_${theme}_test ${CMAKE_CURRENT_SOURCE_DIR}/faults/store_${theme}_test.cpp LIBS pagetune_store SQLiteCpp LABEL faults)
  target_compile_definitions(store_${theme}_test PRIVATE STORE_HELPER="$<TARGET_FILE:store_helper>")
  add_dependencies(store_${theme}_test store_helper)
endforeach()
