foreach(part statistics race work session shard)
  pagetune_test(tuner_${part}_test tuner_${part}_test.cpp LIBS pagetune_tuner)
endforeach()

# The program as a user runs it, on the CPU backend with a cache directory of its own.
if(PAGETUNE_CPU_BACKEND)
  foreach(program cli_test cli_fleet_test)
    pagetune_test(${program} ${program}.cpp LIBS pagetune_store)
    target_compile_definitions(${program} PRIVATE PAGETUNE_PROGRAM="$<TARGET_FILE:pagetune_program>")
    add_dependencies(${program} pagetune_program pagetune_cpu)
  endforeach()

  # Debian's interpreter, as for the other scripts. Alone, since it starts daemons and waits for them.
  add_test(NAME fleet_slurm_test COMMAND /usr/bin/python3 ${CMAKE_CURRENT_SOURCE_DIR}/fleet_slurm_test.py ${PROJECT_SOURCE_DIR} $<TARGET_FILE:pagetune_program>)
  set_tests_properties(fleet_slurm_test PROPERTIES TIMEOUT 180 RUN_SERIAL TRUE)
endif()
