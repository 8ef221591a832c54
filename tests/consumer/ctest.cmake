# The install, used as a stranger would: by find_package, pkg-config and add_subdirectory, from C++ and from C.
set(consumer "${CMAKE_CURRENT_LIST_DIR}")
set(place "${PROJECT_BINARY_DIR}/consumer")
add_test(NAME consumer_install
         COMMAND ${CMAKE_COMMAND} --install "${PROJECT_BINARY_DIR}" --prefix "${place}/prefix")
set_tests_properties(consumer_install PROPERTIES FIXTURES_SETUP polyhead_install)

function(polyhead_consumer name)
  add_test(NAME consumer_${name}
           COMMAND ${CMAKE_CTEST_COMMAND} --build-and-test "${consumer}" "${place}/${name}"
                   --build-generator "${CMAKE_GENERATOR}" --build-options ${ARGN}
                   -DCMAKE_BUILD_TYPE=Release -DCMAKE_CXX_COMPILER=${CMAKE_CXX_COMPILER}
                   -DCMAKE_C_COMPILER=${CMAKE_C_COMPILER} -DCMAKE_CXX_COMPILER_LAUNCHER=${CMAKE_CXX_COMPILER_LAUNCHER}
                   --test-command ${CMAKE_CTEST_COMMAND} --output-on-failure)
  set_tests_properties(consumer_${name} PROPERTIES TIMEOUT 1200 ENVIRONMENT CCACHE_SLOPPINESS=locale)
endfunction()

polyhead_consumer(find_package "-DCMAKE_PREFIX_PATH=${place}/prefix")
polyhead_consumer(find_package_c "-DCMAKE_PREFIX_PATH=${place}/prefix" -DUSER_LANGUAGES=C)
polyhead_consumer(add_subdirectory "-DPOLYHEAD_SOURCE_DIR=${PROJECT_SOURCE_DIR}"
                  -DPOLYHEAD_WERROR=${POLYHEAD_WERROR})
add_test(NAME consumer_pkg_config
         COMMAND "${consumer}/pkg_config.sh" "${place}/prefix" "${place}/pkg_config" ${CMAKE_C_COMPILER}
                 ${CMAKE_CXX_COMPILER})
set_tests_properties(consumer_find_package consumer_find_package_c consumer_pkg_config PROPERTIES FIXTURES_REQUIRED polyhead_install)
