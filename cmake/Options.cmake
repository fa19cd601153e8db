# Options, the compiler's flags and where programs land. Nothing here reaches a consumer's own targets.
option(DOWNPOUR_WITH_TORCH "Build the LibTorch half; OFF builds the core and the launcher only" ON)
option(DOWNPOUR_BUILD_LAUNCHER "Build the program 'downpour'" ON)
option(DOWNPOUR_BUILD_TESTS "Build the tests" ${PROJECT_IS_TOP_LEVEL})
option(DOWNPOUR_BUILD_EXAMPLES "Build the examples" ${PROJECT_IS_TOP_LEVEL})
option(DOWNPOUR_BUILD_BENCHMARKS "Build the benchmarks" ${PROJECT_IS_TOP_LEVEL})
option(DOWNPOUR_INSTALL "Generate install rules" ${PROJECT_IS_TOP_LEVEL})
option(DOWNPOUR_WERROR "Treat warnings in our own code as errors" ${PROJECT_IS_TOP_LEVEL})
option(DOWNPOUR_FUZZ "Build the fuzz targets (clang only)" OFF)
option(DOWNPOUR_CCACHE "Compile through ccache when it is installed" ${PROJECT_IS_TOP_LEVEL})
set(DOWNPOUR_SANITIZE "" CACHE STRING "Sanitizers for our code: 'address;undefined' or 'thread'")
set(DOWNPOUR_CUDA AUTO CACHE STRING "CUDA code paths: AUTO, ON or OFF")
set(DOWNPOUR_LIBTORCH "" CACHE PATH "A LibTorch folder: a wheel's or a Python installation's torch folder, or the unpacked zip")
set(DOWNPOUR_TORCH_VERSION 2.15.0 CACHE STRING "The pinned wheel that a top-level build fetches when no LibTorch is given")
set(DOWNPOUR_PRECOMPILED_FOLDER "${PROJECT_BINARY_DIR}/precompiled" CACHE PATH "Where the precompiled header is built")
mark_as_advanced(DOWNPOUR_PRECOMPILED_FOLDER)
set_property(CACHE DOWNPOUR_CUDA PROPERTY STRINGS AUTO ON OFF)

if(PROJECT_IS_TOP_LEVEL AND NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
  set(CMAKE_BUILD_TYPE RelWithDebInfo CACHE STRING "Build type" FORCE)
endif()
if(PROJECT_IS_TOP_LEVEL)
  # -g1 keeps line numbers for stack traces; LibTorch's templates make full debug information enormous.
  set(CMAKE_CXX_FLAGS_RELWITHDEBINFO "-O3 -g1 -DNDEBUG")
  if(DOWNPOUR_SANITIZE OR DOWNPOUR_FUZZ)
    set(CMAKE_CXX_FLAGS_RELWITHDEBINFO "-O1 -g1")
  endif()
  set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
endif()

if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
  set(CMAKE_CXX_FLAGS "-O3 ${CMAKE_CXX_FLAGS}")  # a project that names no build type still wants fast servers; its own -O wins
endif()

if(DOWNPOUR_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  find_program(DOWNPOUR_CCACHE_PROGRAM ccache)
  if(DOWNPOUR_CCACHE_PROGRAM)
    # The sloppiness lets it cache what uses a precompiled header; the rest lets clones in other folders share results.
    set(CMAKE_CXX_COMPILER_LAUNCHER "${CMAKE_COMMAND}" -E env "CCACHE_BASEDIR=${PROJECT_SOURCE_DIR}" CCACHE_NOHASHDIR=1
        CCACHE_SLOPPINESS=pch_defines,time_macros,include_file_mtime,include_file_ctime "${DOWNPOUR_CCACHE_PROGRAM}")
  endif()
endif()

set(DOWNPOUR_FLAGS "")
set(DOWNPOUR_LINK_FLAGS "")
if(DOWNPOUR_FUZZ)
  if(NOT CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
    message(FATAL_ERROR "Downpour: DOWNPOUR_FUZZ needs clang, the compiler is ${CMAKE_CXX_COMPILER_ID} ${CMAKE_CXX_COMPILER_VERSION}.")
  endif()
  list(APPEND DOWNPOUR_FLAGS -fsanitize=fuzzer-no-link)
  list(APPEND DOWNPOUR_SANITIZE address undefined)
  list(REMOVE_DUPLICATES DOWNPOUR_SANITIZE)
endif()
if(DOWNPOUR_SANITIZE)
  list(JOIN DOWNPOUR_SANITIZE "," sanitizers)
  list(APPEND DOWNPOUR_FLAGS -fsanitize=${sanitizers} -fno-sanitize-recover=all -fno-omit-frame-pointer -D_GLIBCXX_ASSERTIONS)
  list(APPEND DOWNPOUR_LINK_FLAGS -fsanitize=${sanitizers})
endif()

set(DOWNPOUR_WARNINGS -Wall -Wextra -Wpedantic -Wshadow -Wnon-virtual-dtor -Woverloaded-virtual)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  # In inlined library code at -O3 these report what cannot happen; clang and the sanitizer builds find the real ones.
  list(APPEND DOWNPOUR_WARNINGS -Wno-array-bounds -Wno-stringop-overflow -Wno-stringop-overread -Wno-restrict -Wno-maybe-uninitialized)
endif()
if(DOWNPOUR_WERROR)
  list(APPEND DOWNPOUR_WARNINGS -Werror)
endif()

# Compiles one of our own targets in the house's way; what its consumers need is set elsewhere.
function(downpour_target target)
  target_compile_features(${target} PUBLIC cxx_std_20)
  target_compile_options(${target} PRIVATE ${DOWNPOUR_WARNINGS} ${DOWNPOUR_FLAGS})
  target_link_options(${target} PRIVATE ${DOWNPOUR_LINK_FLAGS})
  # One flag for libraries and programs alike, so that they can share a precompiled header.
  target_compile_options(${target} PRIVATE -fPIC)
  set_target_properties(${target} PROPERTIES
    CXX_EXTENSIONS OFF
    POSITION_INDEPENDENT_CODE OFF
    RUNTIME_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}/bin"
    ARCHIVE_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}/lib"
    LIBRARY_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}/lib")
  target_include_directories(${target} PRIVATE "${PROJECT_SOURCE_DIR}" "${PROJECT_SOURCE_DIR}/include")
endfunction()
