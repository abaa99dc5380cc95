/* Makes the system refuse memory to everything in this process: malloc and its relatives, mmap, and the starts of threads.
 * The functions are the program's own, which the dynamic linker prefers to libc's. glibc only. */
#ifndef INJECT_H
#define INJECT_H

enum inject_mode { INJECT_ONCE, INJECT_FROM_THEN_ON };

/* From now on the requests of all threads are counted, and request `n` fails, counted from 1, in INJECT_FROM_THEN_ON
 * also all that come after it. With `n` 0 none fails. */
void inject_start(long n, enum inject_mode mode);

/* Nothing fails any more. Returns how many requests there were. */
long inject_stop(void);

/* How many requests have failed since the last inject_start. */
long inject_refused(void);

#endif
