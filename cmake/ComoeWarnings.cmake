# comoe_warnings: what every target of ours is compiled with. Generated code is not.
add_library(comoe_warnings INTERFACE)
target_compile_options(comoe_warnings INTERFACE
  -Wall -Wextra -Wpedantic -Wconversion -Wshadow -Wnon-virtual-dtor -Wold-style-cast
  $<$<BOOL:${COMOE_WERROR}>:-Werror>
  $<$<CXX_COMPILER_ID:Clang>:-Wthread-safety;-Wno-sign-conversion>)

# Sanitizers go to everything, generated code too.
if(COMOE_SANITIZE STREQUAL "address")
  add_compile_options(-fsanitize=address,undefined -fno-sanitize-recover=undefined -fno-omit-frame-pointer)
  add_link_options(-fsanitize=address,undefined)
elseif(COMOE_SANITIZE STREQUAL "thread")
  add_compile_options(-fsanitize=thread -fno-omit-frame-pointer)
  add_link_options(-fsanitize=thread)
elseif(NOT COMOE_SANITIZE STREQUAL "")
  message(FATAL_ERROR "COMOE_SANITIZE is '${COMOE_SANITIZE}': empty, address or thread")
endif()

# A fuzzer steers by the coverage of what it tests, so that is instrumented too, not the fuzzer's own file alone.
if(COMOE_FUZZ)
  add_compile_options(-fsanitize=fuzzer-no-link)
  add_link_options(-fsanitize=fuzzer-no-link)
endif()
