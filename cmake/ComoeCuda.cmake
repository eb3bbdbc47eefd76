# The CUDA backend is a plugin, libcomoe_cuda.so, loaded at start: no program of ours has CUDA on its link line.
# COMOE_HAVE_CUDA says whether it is built. Without it everything else builds and is tested as before.
set(COMOE_CUDA AUTO CACHE STRING "Build the CUDA plugin: AUTO (when a CUDA compiler is found), ON or OFF")
set_property(CACHE COMOE_CUDA PROPERTY STRINGS AUTO ON OFF)
set(COMOE_HAVE_CUDA OFF)
if(NOT COMOE_SANITIZE STREQUAL "" OR COMOE_FUZZ)
  if(COMOE_CUDA STREQUAL "ON")
    message(FATAL_ERROR "COMOE_CUDA=ON does not go with COMOE_SANITIZE or COMOE_FUZZ: use compute-sanitizer")
  endif()
elseif(NOT COMOE_CUDA STREQUAL "OFF")
  include(CheckLanguage)
  check_language(CUDA)
  if(CMAKE_CUDA_COMPILER)
    set(COMOE_HAVE_CUDA ON)
  elseif(COMOE_CUDA STREQUAL "ON")
    message(FATAL_ERROR "COMOE_CUDA=ON, but no CUDA compiler was found: put nvcc on PATH or set CMAKE_CUDA_COMPILER")
  endif()
endif()
message(STATUS "CUDA plugin: ${COMOE_HAVE_CUDA}")
if(NOT COMOE_HAVE_CUDA)
  return()
endif()

# Code for what is in use, and PTX of the newest for what comes. -DCMAKE_CUDA_ARCHITECTURES=90-real builds for one.
if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
  set(CMAKE_CUDA_ARCHITECTURES "80-real;86-real;89-real;90-real;120")
endif()
enable_language(CUDA)
# CMake 3.25 knows no C++20 flag for nvcc (newer ones do).
if(NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION)
  set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION "-std=c++20")
  set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION "-std=c++20")
endif()
set(CMAKE_CUDA_STANDARD 20)
set(CMAKE_CUDA_STANDARD_REQUIRED ON)
set(CMAKE_CUDA_RUNTIME_LIBRARY Static)
if(COMOE_CCACHE AND NOT CMAKE_CUDA_COMPILER_LAUNCHER)
  set(CMAKE_CUDA_COMPILER_LAUNCHER "${COMOE_CCACHE}")
endif()
find_package(CUDAToolkit REQUIRED)

# The kernels' folder adds its files: target_sources(comoe_cuda PRIVATE ...).
add_library(comoe_cuda MODULE "${CMAKE_SOURCE_DIR}/engine/device/cuda/plugin.cu")
target_include_directories(comoe_cuda PRIVATE "${CMAKE_SOURCE_DIR}")
# -Wpedantic and -Wold-style-cast do not go with what nvcc generates.
target_compile_options(comoe_cuda PRIVATE
  "$<$<COMPILE_LANGUAGE:CUDA>:--Werror=all-warnings;-Wno-deprecated-gpu-targets;--compress-mode=size;-Xcompiler=-Wall,-Wextra,-Wconversion,-Wshadow,-fvisibility=hidden>")
string(REPLACE ";" "," architectures "${CMAKE_CUDA_ARCHITECTURES}")
target_compile_definitions(comoe_cuda PRIVATE 
  "COMOE_CUDA_ARCHITECTURES=\"${architectures}\"" "COMOE_CUDA_TOOLKIT=\"${CUDAToolkit_VERSION}\"")
target_link_libraries(comoe_cuda PRIVATE ${CMAKE_DL_LIBS})
target_link_options(comoe_cuda PRIVATE -Wl,--no-undefined -Wl,--exclude-libs,ALL)
# Beside the programs' folders, where they look for it: <program>/../lib.
set_target_properties(comoe_cuda PROPERTIES
  LIBRARY_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}/lib" INSTALL_RPATH "$ORIGIN;/usr/local/cuda/lib64")
install(TARGETS comoe_cuda LIBRARY DESTINATION lib)
