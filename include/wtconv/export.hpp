// What a shared libwtconv exports: the public headers open their namespace with WTCONV_EXPORT, all else is hidden.
#pragma once

#define WTCONV_EXPORT [[gnu::visibility("default")]]
