/* Three defects on demand, to prove that valgrind finds them in programs run as the C tests are.
 * Usage: defects none|read|branch|leak */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int main(int argc, char **argv)
{
    const char *defect = argc > 1 ? argv[1] : "";
    char *volatile block = malloc(16);
    int seen = 0;
    if (block == NULL) return 2;
    if (strcmp(defect, "read") == 0) {
        memset(block, 1, 16);
        free(block);
        seen = block[3];
        block = malloc(16);
    } else if (strcmp(defect, "branch") == 0) {
        if (block[5] == 7) seen = 1;
    } else if (strcmp(defect, "leak") == 0) {
        block = malloc(16);
    } else if (strcmp(defect, "none") != 0) {
        fprintf(stderr, "usage: defects none|read|branch|leak\n");
        return 2;
    }
    printf("%d\n", seen);
    free(block);
    return 0;
}
