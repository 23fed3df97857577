# Finds the C++20 compiler and Python's headers, or says what to install: CMake's own words for both are obscure.
include(CheckLanguage)
check_language(CXX)
if(NOT CMAKE_CXX_COMPILER)
  message(FATAL_ERROR
    "octavo builds its kernels when it is installed, and no C++ compiler was found.\n"
    "It needs GCC 11 or Clang 14 or newer. On Debian and Ubuntu: apt-get install g++. "
    "Where there is one under another name: CXX=/path/to/c++ pip install ...")
endif()
enable_language(CXX)

set(octavo_oldest_GNU 11)
set(octavo_oldest_Clang 14)
set(octavo_oldest "${octavo_oldest_${CMAKE_CXX_COMPILER_ID}}")
if(octavo_oldest AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS octavo_oldest)
  message(FATAL_ERROR
    "octavo needs ${CMAKE_CXX_COMPILER_ID} ${octavo_oldest} or newer (C++20); "
    "${CMAKE_CXX_COMPILER} is ${CMAKE_CXX_COMPILER_VERSION}. Name another one: CXX=/path/to/c++ pip install ...")
endif()

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)

find_package(Python 3.11 QUIET COMPONENTS Interpreter Development.Module)
if(NOT Python_Development.Module_FOUND)
  message(FATAL_ERROR
    "octavo builds a Python extension, and the headers of ${Python_EXECUTABLE} were not found. "
    "On Debian and Ubuntu: apt-get install python3-dev.")
endif()
