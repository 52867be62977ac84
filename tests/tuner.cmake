foreach(part statistics race search recording work session)
  pagetune_test(tuner_${part}_test tuner_${part}_test.cpp LIBS pagetune_tuner)
endforeach()
target_compile_definitions(tuner_recording_test PRIVATE PAGETUNE_RECORDINGS="${CMAKE_CURRENT_LIST_DIR}/recordings")

# The program as a user runs it, on the CPU backend with a cache directory of its own.
if(PAGETUNE_CPU_BACKEND)
  pagetune_test(cli_test cli_test.cpp LIBS pagetune_options)
  target_compile_definitions(cli_test PRIVATE PAGETUNE_PROGRAM="$<TARGET_FILE:pagetune_program>")
  add_dependencies(cli_test pagetune_program pagetune_cpu)
endif()
