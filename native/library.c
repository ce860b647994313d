/* What library.py asks of the library before it calls anything else. */
#include "tiermesh.h"

const char *tiermesh_sources(void)
{
    return TIERMESH_SOURCES; /* given by build.py */
}
