# The CPU library, through the same dlopen that the core uses.
if(PAGETUNE_CPU_BACKEND)
  foreach(part numerics features memory threads compiler device)
    pagetune_test(cpu_${part}_test cpu_${part}_test.cpp cpu_problem.cpp cpu_reference.cpp LIBS pagetune LABEL cpu)
    add_dependencies(cpu_${part}_test pagetune_cpu)
  endforeach()
endif()
