# One library a folder. comoe_library(comoe_engine_base SRCS a.cc b.cc DEPS ...): DEPS are the folder's
# allowed arrows (tools/check_layering.py holds the includes to the same list).
function(comoe_library name)
  cmake_parse_arguments(ARG "" "" "SRCS;DEPS;PRIVATE_DEPS" ${ARGN})
  if(ARG_SRCS)
    add_library(${name} STATIC ${ARG_SRCS})
    target_include_directories(${name} PUBLIC "${CMAKE_SOURCE_DIR}")
    target_link_libraries(${name} PUBLIC ${ARG_DEPS} PRIVATE ${ARG_PRIVATE_DEPS} comoe_warnings)
    add_dependencies(${name} layering)
  else()
    add_library(${name} INTERFACE)
    target_include_directories(${name} INTERFACE "${CMAKE_SOURCE_DIR}")
    target_link_libraries(${name} INTERFACE ${ARG_DEPS})
  endif()
endfunction()

# Messages and services of .proto files below proto/, warnings off, headers seen as SYSTEM.
function(comoe_proto_library name)
  set(root "${CMAKE_SOURCE_DIR}/proto")
  set(out "${CMAKE_BINARY_DIR}/gen")
  file(MAKE_DIRECTORY "${out}")
  set(generated)
  foreach(rel IN LISTS ARGN)
    string(REGEX REPLACE "\\.proto$" "" stem "${rel}")
    set(files "${out}/${stem}.pb.cc" "${out}/${stem}.pb.h" "${out}/${stem}.grpc.pb.cc" "${out}/${stem}.grpc.pb.h")
    add_custom_command(
      OUTPUT ${files}
      COMMAND protobuf::protoc --proto_path=${root} --cpp_out=${out}
              --grpc_out=${out} --plugin=protoc-gen-grpc=$<TARGET_FILE:gRPC::grpc_cpp_plugin> ${rel}
      DEPENDS "${root}/${rel}"
      VERBATIM)
    list(APPEND generated ${files})
  endforeach()
  add_library(${name} STATIC ${generated})
  target_include_directories(${name} SYSTEM PUBLIC "${out}")
  target_compile_options(${name} PRIVATE -w)
  target_link_libraries(${name} PUBLIC gRPC::grpc++ protobuf::libprotobuf)
endfunction()

# comoe_test(name SRCS ... DEPS ... LABELS unit|e2e|slow): a GoogleTest program, its cases known to ctest.
# COMOE_SOURCE_DIR in the environment is the repository, so that tests find their fixtures.
function(comoe_test name)
  cmake_parse_arguments(ARG "" "TIMEOUT" "SRCS;DEPS;LABELS" ${ARGN})
  if(NOT ARG_LABELS)
    set(ARG_LABELS unit)
  endif()
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 300)
  endif()
  add_executable(${name} ${ARG_SRCS})
  target_link_libraries(${name} PRIVATE ${ARG_DEPS} GTest::gmock GTest::gtest_main comoe_warnings)
  # One ctest entry a program: starting a process per case costs more than the cases.
  add_test(NAME ${name} COMMAND ${name})
  set_tests_properties(${name} PROPERTIES LABELS "${ARG_LABELS}" TIMEOUT ${ARG_TIMEOUT}
    ENVIRONMENT "COMOE_SOURCE_DIR=${CMAKE_SOURCE_DIR}")
endfunction()

# comoe_fuzzer(name SRCS ... DEPS ...): libFuzzer, built with -DCOMOE_FUZZ=ON only.
function(comoe_fuzzer name)
  if(NOT COMOE_FUZZ)
    return()
  endif()
  cmake_parse_arguments(ARG "" "" "SRCS;DEPS" ${ARGN})
  add_executable(${name} ${ARG_SRCS})
  target_compile_options(${name} PRIVATE -fsanitize=fuzzer)
  target_link_options(${name} PRIVATE -fsanitize=fuzzer)
  target_link_libraries(${name} PRIVATE ${ARG_DEPS} comoe_warnings)
endfunction()
