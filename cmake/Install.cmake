# Installed tree: lib/, bin/downpour, include/downpour/{downpour.h,csrc,optimizers,backends}, find_package and pkg-config files.
include(CMakePackageConfigHelpers)
set(config_folder "${CMAKE_INSTALL_LIBDIR}/cmake/Downpour")

install(TARGETS downpour_core EXPORT DownpourCoreTargets)
install(EXPORT DownpourCoreTargets NAMESPACE Downpour:: DESTINATION "${config_folder}")
if(DOWNPOUR_WITH_TORCH)
  install(TARGETS downpour EXPORT DownpourTorchTargets)
  install(EXPORT DownpourTorchTargets NAMESPACE Downpour:: DESTINATION "${config_folder}")
  install(FILES "${PROJECT_SOURCE_DIR}/cmake/LibTorch.cmake" DESTINATION "${config_folder}")
endif()
if(TARGET downpour_launcher)
  install(TARGETS downpour_launcher)
endif()

# Headers include each other by their path in the source tree, so that tree is kept below include/downpour.
set(header_folders csrc/base csrc/transport csrc/ps csrc/collective)
if(DOWNPOUR_WITH_TORCH)
  list(APPEND header_folders csrc/model optimizers backends)
  install(DIRECTORY "${PROJECT_SOURCE_DIR}/include/downpour" DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}")
endif()
foreach(folder IN LISTS header_folders)
  install(DIRECTORY "${PROJECT_SOURCE_DIR}/${folder}/" DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}/downpour/${folder}"
          FILES_MATCHING PATTERN "*.h")
endforeach()
install(FILES "${PROJECT_SOURCE_DIR}/LICENSE" DESTINATION "${CMAKE_INSTALL_DOCDIR}")

configure_package_config_file("${PROJECT_SOURCE_DIR}/cmake/DownpourConfig.cmake.in" "${PROJECT_BINARY_DIR}/DownpourConfig.cmake"
                              INSTALL_DESTINATION "${config_folder}" NO_SET_AND_CHECK_MACRO)
write_basic_package_version_file("${PROJECT_BINARY_DIR}/DownpourConfigVersion.cmake" COMPATIBILITY SameMinorVersion)
install(FILES "${PROJECT_BINARY_DIR}/DownpourConfig.cmake" "${PROJECT_BINARY_DIR}/DownpourConfigVersion.cmake" DESTINATION "${config_folder}")

# Who links the static core links what it uses.
set(DOWNPOUR_PC_LIBS "")
if(NOT BUILD_SHARED_LIBS)
  set(DOWNPOUR_PC_LIBS "-lhwy")
endif()
set(DOWNPOUR_PC_CUDA "")
if(DOWNPOUR_WITH_CUDA)
  set(DOWNPOUR_PC_CUDA "-ltorch_cuda -lc10_cuda")
endif()
file(RELATIVE_PATH prefix_from_pkgconfig "/${CMAKE_INSTALL_LIBDIR}/pkgconfig" "/")
configure_file("${PROJECT_SOURCE_DIR}/cmake/downpour-core.pc.in" "${PROJECT_BINARY_DIR}/downpour-core.pc" @ONLY)
install(FILES "${PROJECT_BINARY_DIR}/downpour-core.pc" DESTINATION "${CMAKE_INSTALL_LIBDIR}/pkgconfig")
if(DOWNPOUR_WITH_TORCH)
  configure_file("${PROJECT_SOURCE_DIR}/cmake/downpour.pc.in" "${PROJECT_BINARY_DIR}/downpour.pc" @ONLY)
  install(FILES "${PROJECT_BINARY_DIR}/downpour.pc" DESTINATION "${CMAKE_INSTALL_LIBDIR}/pkgconfig")
endif()
