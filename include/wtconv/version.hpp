// Version of the library. The build reads it from here.
#pragma once

#define WTCONV_VERSION "0.1.0"
