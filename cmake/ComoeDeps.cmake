# Debian 12's packages through their own CMake files or pkg-config; nothing is fetched.
find_package(Threads REQUIRED)
find_package(Protobuf 3.21 REQUIRED)  # CMake's module: Debian ships no protobuf-config.cmake
find_package(absl CONFIG REQUIRED)
find_package(gRPC 1.51 CONFIG REQUIRED)
find_package(prometheus-cpp CONFIG REQUIRED)  # ships no version file: asking for one fails
find_package(nlohmann_json 3.11 CONFIG REQUIRED)
find_package(CLI11 CONFIG REQUIRED)
find_package(PkgConfig REQUIRED)
pkg_check_modules(PCRE2 REQUIRED IMPORTED_TARGET libpcre2-8)
pkg_check_modules(UTF8PROC REQUIRED IMPORTED_TARGET libutf8proc)
pkg_check_modules(HIGHWAY REQUIRED IMPORTED_TARGET libhwy)
pkg_check_modules(XXHASH REQUIRED IMPORTED_TARGET libxxhash)
pkg_check_modules(LIBZIP REQUIRED IMPORTED_TARGET libzip)
