pagetune_test(codegen_test
  ${CMAKE_CURRENT_SOURCE_DIR}/codegen_bucket_test.cpp
  ${CMAKE_CURRENT_SOURCE_DIR}/codegen_default_test.cpp
  ${CMAKE_CURRENT_SOURCE_DIR}/codegen_expression_test.cpp
  ${CMAKE_CURRENT_SOURCE_DIR}/codegen_json_test.cpp
  ${CMAKE_CURRENT_SOURCE_DIR}/codegen_sha256_test.cpp
  ${CMAKE_CURRENT_SOURCE_DIR}/codegen_space_test.cpp
  ${CMAKE_CURRENT_SOURCE_DIR}/codegen_spec_test.cpp
  ${CMAKE_CURRENT_SOURCE_DIR}/codegen_support_test.cpp
  ${CMAKE_CURRENT_SOURCE_DIR}/codegen_target_test.cpp
  LIBS pagetune_codegen)

# Debian's interpreter, because python3-jsonschema is Debian's.
add_test(NAME codegen_schema_test COMMAND /usr/bin/python3 ${CMAKE_CURRENT_SOURCE_DIR}/codegen_schema_test.py ${PROJECT_SOURCE_DIR})
