// SPDX-License-Identifier: Apache-2.0

package language

import (
	"slices"
	"strings"
	"testing"
)

func TestCodeOfEveryLengthFindsItsWayToTheInterpreter(t *testing.T) {
	t.Parallel()
	l := Default()["python"]
	short, long := strings.Repeat("#", MaxArg), strings.Repeat("#", MaxArg+1)
	if argv, script := l.Command(short); script != -1 || !slices.Equal(argv, []string{"python3", "-c", short}) {
		t.Errorf("%.40q, %d", argv, script)
	}
	if argv, script := l.Command(long); script != 1 || !slices.Equal(argv, []string{"python3", "{file}"}) {
		t.Errorf("%.40q, %d", argv, script)
	}
	if l.Inline[2] != codePlaceholder {
		t.Error("a command changes the configuration")
	}
}
