# Installs the library, its public headers and the package that find_package(wtconv) reads.
include(CMakePackageConfigHelpers)
set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/wtconv)

set(installed wtconv)
if(TARGET wtconv_cuda)
  list(APPEND installed wtconv_cuda)
  set_target_properties(wtconv_cuda PROPERTIES EXPORT_NAME cuda)
endif()
install(
  TARGETS ${installed}
  EXPORT wtconv-targets
  FILE_SET HEADERS)
install(
  EXPORT wtconv-targets
  NAMESPACE wtconv::
  DESTINATION ${package_dir})

# A static library leaves the libraries it uses to the program that links it, so the package must find them again.
set(wtconv_dependencies "")
if(NOT BUILD_SHARED_LIBS)
  set(find_OpenMP::OpenMP_CXX "OpenMP COMPONENTS CXX")
  set(find_hwy::hwy "hwy")
  set(find_CUDA::cudart_static "CUDAToolkit")
  foreach(target IN LISTS installed)
    get_target_property(libraries ${target} LINK_LIBRARIES)
    # Without this project's own, and CMake's mark of the folder that added a library.
    list(REMOVE_DUPLICATES libraries)
    list(FILTER libraries EXCLUDE REGEX "^(wtconv::|::@)")
    foreach(library IN LISTS libraries)
      if(NOT DEFINED find_${library})
        message(FATAL_ERROR "cmake/install.cmake does not know how an installed wtconv finds ${library}")
      endif()
      string(APPEND wtconv_dependencies "find_dependency(${find_${library}})\n")
    endforeach()
  endforeach()
endif()
configure_package_config_file(cmake/wtconv-config.cmake.in ${PROJECT_BINARY_DIR}/wtconv-config.cmake
                              INSTALL_DESTINATION ${package_dir})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/wtconv-config-version.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/wtconv-config.cmake ${PROJECT_BINARY_DIR}/wtconv-config-version.cmake
        DESTINATION ${package_dir})
