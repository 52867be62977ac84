file(GLOB store_tests CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/store_*_test.cpp)
pagetune_test(store_test ${store_tests} LIBS pagetune_store SQLiteCpp)

# The program that the fault tests start many times, kill and stop.
add_executable(store_helper ${CMAKE_CURRENT_SOURCE_DIR}/faults/store_helper.cpp)
target_link_libraries(store_helper PRIVATE pagetune_store)

file(GLOB store_fault_tests CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/faults/store_*_test.cpp)
pagetune_test(store_faults_test ${store_fault_tests} LIBS pagetune_store SQLiteCpp LABEL faults)
target_compile_definitions(store_faults_test PRIVATE STORE_HELPER="$<TARGET_FILE:store_helper>")
add_dependencies(store_faults_test store_helper)
