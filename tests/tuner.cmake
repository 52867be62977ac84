foreach(part statistics race work session)
  pagetune_test(tuner_${part}_test tuner_${part}_test.cpp LIBS pagetune_tuner)
endforeach()

# Sessions with worker processes, and the program that plays the workers.
add_executable(tuner_worker_helper tuner_worker_helper.cpp)
target_link_libraries(tuner_worker_helper PRIVATE pagetune_tuner)
pagetune_test(tuner_workers_test tuner_workers_test.cpp LIBS pagetune_tuner)
target_compile_definitions(tuner_workers_test PRIVATE TUNER_WORKER_HELPER="$<TARGET_FILE:tuner_worker_helper>")
add_dependencies(tuner_workers_test tuner_worker_helper)

# The program as a user runs it, on the CPU backend with a cache directory of its own.
if(PAGETUNE_CPU_BACKEND)
  pagetune_test(cli_test cli_test.cpp LIBS pagetune_options)
  target_compile_definitions(cli_test PRIVATE PAGETUNE_PROGRAM="$<TARGET_FILE:pagetune_program>")
  add_dependencies(cli_test pagetune_program pagetune_cpu)
endif()
