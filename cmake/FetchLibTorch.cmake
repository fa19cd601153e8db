# downpour_fetch_libtorch(<version> <cpu|cuda> <result>): the torch folder of the pinned wheel.
#
# Downloads and unpacks once a user, outside of every build tree; the folder appears under its final name only when it
# is complete, so an interrupted run leaves nothing that a later one could mistake for it.
function(downpour_fetch_libtorch version flavour result)
  set(pins "${CMAKE_CURRENT_FUNCTION_LIST_DIR}/libtorch/${version}.txt")
  if(NOT EXISTS "${pins}")
    message(FATAL_ERROR "Downpour: no wheel of LibTorch ${version} is pinned in cmake/libtorch; point DOWNPOUR_LIBTORCH at an unpacked one.")
  endif()
  if(NOT CMAKE_HOST_SYSTEM_NAME STREQUAL "Linux" OR NOT CMAKE_HOST_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
    message(FATAL_ERROR "Downpour: the pinned wheel is for x86-64 Linux, this is ${CMAKE_HOST_SYSTEM_PROCESSOR} ${CMAKE_HOST_SYSTEM_NAME}; "
                        "point DOWNPOUR_LIBTORCH at a LibTorch for it.")
  endif()

  # What is unpacked, a pattern for each thing that must be there. libtorch.so needs libtorch_cuda.so, so both or none.
  set(torch_members "torch/include/*" "torch/share/cmake/*" "torch-*.dist-info/*" torch/lib/libc10.so torch/lib/libtorch_cpu.so
      torch/lib/libtorch_global_deps.so "torch/lib/libg*.so.*")
  set(nvidia_members "nvidia/cu13/lib/*.so.*")
  if(flavour STREQUAL "cuda")
    list(APPEND torch_members torch/lib/libtorch.so torch/lib/libc10_cuda.so "torch/lib/libtorch_cuda*.so"
         torch/lib/libtorch_nvshmem.so torch/lib/libcaffe2_nvrtc.so)
  endif()

  file(SHA256 "${pins}" key)
  string(SHA256 key "${key};${torch_members};${nvidia_members}")
  string(SUBSTRING "${key}" 0 8 key)
  if(DEFINED ENV{XDG_CACHE_HOME} AND IS_ABSOLUTE "$ENV{XDG_CACHE_HOME}")
    set(cache "$ENV{XDG_CACHE_HOME}/downpour")
  else()
    set(cache "$ENV{HOME}/.cache/downpour")
  endif()
  set(folder "${cache}/libtorch-${version}-${flavour}-${key}")
  set(${result} "${folder}/torch" PARENT_SCOPE)
  if(EXISTS "${folder}")
    return()
  endif()

  file(MAKE_DIRECTORY "${cache}")
  file(LOCK "${cache}/lock" GUARD FUNCTION)
  if(EXISTS "${folder}")  # another configure run was faster
    return()
  endif()

  find_program(DOWNPOUR_PYTHON NAMES python3)
  set(pip "${DOWNPOUR_PYTHON}" -m pip --disable-pip-version-check --no-input)
  execute_process(COMMAND ${pip} --version RESULT_VARIABLE failed OUTPUT_QUIET ERROR_QUIET)
  if(NOT DOWNPOUR_PYTHON OR failed)
    message(FATAL_ERROR "Downpour: fetching LibTorch ${version} needs python3 with pip (on Debian: apt-get install python3-pip); "
                        "or point DOWNPOUR_LIBTORCH at an unpacked one.")
  endif()

  file(GLOB abandoned "${cache}/*.partial")  # nobody writes there but the holder of the lock
  set(partial "${folder}.partial")
  file(REMOVE_RECURSE "${partial}" ${abandoned})
  file(MAKE_DIRECTORY "${partial}/wheels" "${partial}/tree")
  message(NOTICE "Downpour: downloading LibTorch ${version} (about 550 MB, once)")
  execute_process(
    COMMAND ${pip} download --quiet --require-hashes -r "${pins}" --no-deps --only-binary=:all:
            --python-version 311 --implementation cp --abi cp311 --abi abi3 --abi none
            --platform manylinux_2_28_x86_64 --platform manylinux_2_25_x86_64 --platform manylinux_2_17_x86_64
            --platform manylinux2014_x86_64 --dest "${partial}/wheels"
    RESULT_VARIABLE failed)
  if(failed)
    file(REMOVE_RECURSE "${partial}")
    message(FATAL_ERROR "Downpour: pip could not download the pinned wheels of LibTorch ${version}; point DOWNPOUR_LIBTORCH at an unpacked one.")
  endif()
  message(NOTICE "Downpour: unpacking LibTorch ${version} (${flavour}) to ${folder}")
  foreach(owner torch nvidia)
    file(GLOB wheels "${partial}/wheels/${owner}*.whl")
    foreach(wheel IN LISTS wheels)
      file(ARCHIVE_EXTRACT INPUT "${wheel}" DESTINATION "${partial}/tree" PATTERNS ${${owner}_members})
    endforeach()
  endforeach()
  file(RENAME "${partial}/tree" "${folder}")
  file(REMOVE_RECURSE "${partial}")
endfunction()
