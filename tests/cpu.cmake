# The CPU library, through the same dlopen that the core uses.
if(PAGETUNE_CPU_BACKEND)
  foreach(part numerics features memory threads compiler device)
    pagetune_test(cpu_${part}_test cpu_${part}_test.cpp cpu_problem.cpp cpu_reference.cpp LIBS pagetune LABEL cpu)
    add_dependencies(cpu_${part}_test pagetune_cpu)
  endforeach()
  # LeakSanitizer's tracer faults, or not, with the length of the program's path, on the thread-local storage of threads that were joined. The other parts
  # go through the same code with the leak check on.
  set_property(TEST cpu_threads_test APPEND PROPERTY ENVIRONMENT ASAN_OPTIONS=detect_leaks=0)
endif()
