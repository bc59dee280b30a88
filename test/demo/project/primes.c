/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <string.h>

static char composite[2000000];

int main(void) {
	int n = sizeof composite, count = 0;
	for (int i = 2; i < n; i++) {
		if (composite[i])
			continue;
		count++;
		for (long j = (long)i * i; j < n; j += i)
			composite[j] = 1;
	}
	printf("  %d primes below %d\n", count, n);
	return 0;
}
