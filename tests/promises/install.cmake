# Installs libwtconv, moves the prefix, and builds and runs consumer/ against it. `build` is the tree to install from;
# with `shared` it is made first, for shared libraries. `components` are asked for: `cuda`, or none.
cmake_minimum_required(VERSION 3.25)

function(run)
  execute_process(COMMAND ${ARGV} COMMAND_ERROR_IS_FATAL ANY)
endfunction()

file(REMOVE_RECURSE ${work})
set(cuda OFF)
if(components STREQUAL "cuda")
  set(cuda ON)
endif()
if(shared)
  run(${CMAKE_COMMAND}
      -S ${source}
      -B ${build}
      ${options}
      -D BUILD_SHARED_LIBS=ON
      -D WTCONV_BUILD_TOOL=OFF
      -D WTCONV_BUILD_TESTS=OFF
      -D WTCONV_CUDA=${cuda})
  run(${CMAKE_COMMAND} --build ${build})
endif()
run(${CMAKE_COMMAND} --install ${build} --prefix ${work}/built)
file(RENAME ${work}/built ${work}/moved)

# The program on the front page is built and run as well.
file(READ ${source}/README.md readme)
if(NOT readme MATCHES "\n```cpp\n([^`]*)```")
  message(FATAL_ERROR "README.md shows no C++ program")
endif()
file(WRITE ${work}/readme.cpp "${CMAKE_MATCH_1}")

run(${CMAKE_COMMAND}
    -S ${CMAKE_CURRENT_LIST_DIR}/consumer
    -B ${work}/consumer
    ${options}
    -D CMAKE_PREFIX_PATH=${work}/moved
    -D version=${version}
    -D "components=${components}"
    -D readme=${work}/readme.cpp)
run(${CMAKE_COMMAND} --build ${work}/consumer)
run(${work}/consumer/consumer)
run(${work}/consumer/readme)
if(cuda)
  run(${work}/consumer/with_cuda)
endif()
