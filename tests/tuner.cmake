foreach(part statistics race search recording work session shard ab answer)
  pagetune_test(tuner_${part}_test tuner_${part}_test.cpp LIBS pagetune_tuner)
endforeach()
target_compile_definitions(tuner_recording_test PRIVATE PAGETUNE_RECORDINGS="${CMAKE_CURRENT_LIST_DIR}/recordings")

# The header that export writes, by the compiler that builds this.
pagetune_test(tuner_header_test tuner_header_test.cpp LIBS pagetune_tuner)
target_compile_definitions(tuner_header_test PRIVATE PAGETUNE_CXX="${CMAKE_CXX_COMPILER}")

# Sessions with worker processes, and the program that plays the workers.
add_executable(tuner_worker_helper tuner_worker_helper.cpp faults/failing_calls.c)
target_link_libraries(tuner_worker_helper PRIVATE pagetune_tuner)
pagetune_test(tuner_workers_test tuner_workers_test.cpp LIBS pagetune_tuner)
target_compile_definitions(tuner_workers_test PRIVATE TUNER_WORKER_HELPER="$<TARGET_FILE:tuner_worker_helper>")
add_dependencies(tuner_workers_test tuner_worker_helper)

foreach(theme kills changes)
  pagetune_test(tuner_${theme}_test faults/tuner_${theme}_test.cpp LIBS pagetune_tuner LABEL faults)
  target_compile_definitions(tuner_${theme}_test PRIVATE TUNER_WORKER_HELPER="$<TARGET_FILE:tuner_worker_helper>")
  add_dependencies(tuner_${theme}_test tuner_worker_helper)
endforeach()

# The same with the program's own workers and a GPU's kernels.
pagetune_device_program(tuner_faults_test ${CMAKE_CURRENT_LIST_DIR}/tuner_faults_test.cpp LIBS attention_support)
pagetune_gpu_entry(tuner_faults_test tuner_faults)
add_dependencies(tuner_faults_test pagetune_program)

# The program as a user runs it, on the CPU backend with a cache directory of its own.
if(PAGETUNE_CPU_BACKEND)
  foreach(program cli_test cli_fleet_test cli_import_test cli_archive_test cli_care_test)
    pagetune_test(${program} ${program}.cpp LIBS pagetune_archive SQLiteCpp)
    target_compile_definitions(${program} PRIVATE PAGETUNE_PROGRAM="$<TARGET_FILE:pagetune_program>")
    add_dependencies(${program} pagetune_program pagetune_cpu)
  endforeach()
  target_compile_definitions(cli_test PRIVATE PAGETUNE_EXAMPLE="$<TARGET_FILE:decode_cpp>")
  add_dependencies(cli_test decode_cpp)

  # Debian's interpreter, as for the other scripts. Alone, since it starts daemons and waits for them.
  add_test(NAME fleet_slurm_test COMMAND /usr/bin/python3 ${CMAKE_CURRENT_SOURCE_DIR}/fleet_slurm_test.py ${PROJECT_SOURCE_DIR} $<TARGET_FILE:pagetune_program>)
  set_tests_properties(fleet_slurm_test PROPERTIES TIMEOUT 180 RUN_SERIAL TRUE)
endif()

# A report in a browser. Debian's interpreter, as for the other scripts.
add_executable(report_store report_store.cpp)
target_link_libraries(report_store PRIVATE pagetune_store)
file(GLOB tables CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/configs/tuned/nvidia-h200/*.json)
add_test(NAME report_test COMMAND /usr/bin/python3 ${CMAKE_CURRENT_SOURCE_DIR}/report_test.py $<TARGET_FILE:pagetune_program> $<TARGET_FILE:report_store> ${tables})
set_tests_properties(report_test PROPERTIES TIMEOUT 600)
