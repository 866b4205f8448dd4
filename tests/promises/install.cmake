# Builds libwtconv alone, installs it, moves the prefix, and builds and runs consumer/ against it.
function(run)
  execute_process(COMMAND ${ARGV} COMMAND_ERROR_IS_FATAL ANY)
endfunction()

set(common
    -G ${generator}
    -D CMAKE_CXX_COMPILER=${compiler}
    -D CMAKE_CXX_COMPILER_LAUNCHER=${launcher}
    -D CMAKE_CXX_FLAGS=${flags}
    -D CMAKE_BUILD_TYPE=${build_type})
if(kind STREQUAL "shared")
  set(shared ON)
else()
  set(shared OFF)
endif()

file(REMOVE_RECURSE ${work})
run(${CMAKE_COMMAND}
    -S ${source}
    -B ${work}/library
    ${common}
    -D BUILD_SHARED_LIBS=${shared}
    -D WTCONV_BUILD_TOOL=OFF
    -D WTCONV_BUILD_TESTS=OFF
    -D WTCONV_CUDA=OFF)
run(${CMAKE_COMMAND} --build ${work}/library)
run(${CMAKE_COMMAND} --install ${work}/library --prefix ${work}/built)
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
    ${common}
    -D CMAKE_PREFIX_PATH=${work}/moved
    -D version=${version}
    -D readme=${work}/readme.cpp)
run(${CMAKE_COMMAND} --build ${work}/consumer)
run(${work}/consumer/consumer)
run(${work}/consumer/readme)
