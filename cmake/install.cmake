# Installs the library, its public headers and the package that find_package(wtconv) reads.
include(CMakePackageConfigHelpers)
set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/wtconv)

# Writes the export of one target, and into `dependencies_of_<target>` how the package finds what a static library leaves
# to the program that links it.
function(install_library target export)
  install(
    TARGETS ${target}
    EXPORT ${export}
    FILE_SET HEADERS)
  install(
    EXPORT ${export}
    NAMESPACE wtconv::
    DESTINATION ${package_dir})
  set(dependencies "")
  if(NOT BUILD_SHARED_LIBS)
    set(find_OpenMP::OpenMP_CXX "OpenMP COMPONENTS CXX")
    set(find_hwy::hwy "hwy")
    set(find_CUDA::cudart_static "CUDAToolkit")
    get_target_property(libraries ${target} LINK_LIBRARIES)
    # Without this project's own, and CMake's mark of the folder that added a library.
    list(REMOVE_DUPLICATES libraries)
    list(FILTER libraries EXCLUDE REGEX "^(wtconv::|::@)")
    foreach(library IN LISTS libraries)
      if(NOT DEFINED find_${library})
        message(FATAL_ERROR "cmake/install.cmake does not know how an installed wtconv finds ${library}")
      endif()
      string(APPEND dependencies "find_dependency(${find_${library}})\n")
    endforeach()
  endif()
  set(dependencies_of_${target}
      "${dependencies}"
      PARENT_SCOPE)
endfunction()

install_library(wtconv wtconv-targets)
if(TARGET wtconv_cuda) # the component `cuda`, so that programs without it need no CUDA toolkit
  set_target_properties(wtconv_cuda PROPERTIES EXPORT_NAME cuda)
  install_library(wtconv_cuda wtconv-cuda-targets)
endif()
configure_package_config_file(cmake/wtconv-config.cmake.in ${PROJECT_BINARY_DIR}/wtconv-config.cmake
                              INSTALL_DESTINATION ${package_dir})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/wtconv-config-version.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/wtconv-config.cmake ${PROJECT_BINARY_DIR}/wtconv-config-version.cmake
        DESTINATION ${package_dir})
