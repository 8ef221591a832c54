# Headers, both libraries, the program, and what find_package and pkg-config read.
include_guard()
include(CMakePackageConfigHelpers)

set(package_dir "${CMAKE_INSTALL_LIBDIR}/cmake/polyhead")
install(DIRECTORY "${PROJECT_SOURCE_DIR}/include/polyhead" DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}")
install(TARGETS polyhead polyhead_static EXPORT polyheadTargets
        LIBRARY DESTINATION "${CMAKE_INSTALL_LIBDIR}"
        ARCHIVE DESTINATION "${CMAKE_INSTALL_LIBDIR}")
install(EXPORT polyheadTargets NAMESPACE polyhead:: DESTINATION "${package_dir}")
if(TARGET polyhead_cli)
  install(TARGETS polyhead_cli DESTINATION "${CMAKE_INSTALL_BINDIR}")
endif()

configure_package_config_file("${CMAKE_CURRENT_LIST_DIR}/polyheadConfig.cmake.in"
                              "${PROJECT_BINARY_DIR}/polyheadConfig.cmake" INSTALL_DESTINATION "${package_dir}")
# A minor version may break callers until 1.0.
write_basic_package_version_file("${PROJECT_BINARY_DIR}/polyheadConfigVersion.cmake"
                                 COMPATIBILITY SameMinorVersion)
install(FILES "${PROJECT_BINARY_DIR}/polyheadConfig.cmake" "${PROJECT_BINARY_DIR}/polyheadConfigVersion.cmake"
        DESTINATION "${package_dir}")

# Relative to where the .pc file lies, so an installed tree may be moved; folders given as whole paths stay those.
file(RELATIVE_PATH up "/${CMAKE_INSTALL_LIBDIR}/pkgconfig" "/")
set(PKG_CONFIG_PREFIX "\${pcfiledir}/${up}")
if(IS_ABSOLUTE "${CMAKE_INSTALL_LIBDIR}")
  set(PKG_CONFIG_PREFIX "${CMAKE_INSTALL_PREFIX}")
endif()
foreach(folder LIBDIR INCLUDEDIR)
  set(PKG_CONFIG_${folder} "\${prefix}/${CMAKE_INSTALL_${folder}}")
  if(IS_ABSOLUTE "${CMAKE_INSTALL_${folder}}")
    set(PKG_CONFIG_${folder} "${CMAKE_INSTALL_${folder}}")
  endif()
endforeach()
configure_file("${CMAKE_CURRENT_LIST_DIR}/polyhead.pc.in" "${PROJECT_BINARY_DIR}/polyhead.pc" @ONLY)
install(FILES "${PROJECT_BINARY_DIR}/polyhead.pc" DESTINATION "${CMAKE_INSTALL_LIBDIR}/pkgconfig")
