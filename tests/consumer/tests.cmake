# Registers the consumer tests: the tree is installed once, then each case builds a project of its own against it.
set(work "${PROJECT_BINARY_DIR}/consumer")
add_test(NAME consumer.install COMMAND "${CMAKE_COMMAND}" --install "${PROJECT_BINARY_DIR}" --prefix "${work}/prefix")
set_tests_properties(consumer.install PROPERTIES LABELS consumer FIXTURES_SETUP downpour_installed TIMEOUT 120)

set(cases core core_pkg_config subdirectory no_build_type)
if(DOWNPOUR_WITH_TORCH)
  list(APPEND cases readme torch torch_pkg_config torch_by_prefix find_torch_first find_torch_after torch_config_first
       torch_config_after fetch_content fetch_content_find_torch_first
       no_libtorch not_a_libtorch old_libtorch other_minor two_libtorch)
endif()
foreach(case IN LISTS cases)
  set(folder "${work}/${case}")
  if(case MATCHES "^(subdirectory|fetch_content)")
    # These compile the library again. ccache knows it from our own build where the sources lie at the same relative place.
    set(folder "${PROJECT_BINARY_DIR}-${case}")
  endif()
  add_test(NAME consumer.${case}
    COMMAND "${CMAKE_COMMAND}" -D CASE=${case} -D "SOURCE=${PROJECT_SOURCE_DIR}" -D "WORK=${folder}" -D "PREFIX=${work}/prefix"
            -D "CXX=${CMAKE_CXX_COMPILER}" -D "LAUNCHER=${CMAKE_CXX_COMPILER_LAUNCHER}" -D BUILD_TYPE=${CMAKE_BUILD_TYPE}
            -D "FLAGS=${CMAKE_CXX_FLAGS_RELWITHDEBINFO}" -D WERROR=${DOWNPOUR_WERROR} -D "LIBTORCH=${DOWNPOUR_TORCH_FOLDER}" -P "${CMAKE_CURRENT_LIST_DIR}/run.cmake")
  set_tests_properties(consumer.${case} PROPERTIES LABELS consumer FIXTURES_REQUIRED downpour_installed TIMEOUT 900
                       SKIP_REGULAR_EXPRESSION "SKIPPED: ")
endforeach()
