// SPDX-License-Identifier: Apache-2.0

package boxtest

import (
	"maps"
	"slices"
	"strings"
)

// Wheel returns a minimal Python package: version 1.0, with one module of the package's name.
// Each script is an entry point, such as "hello = module:main".
func Wheel(name, module string, scripts ...string) []byte {
	info := name + "-1.0.dist-info/"
	files := map[string]string{
		name + ".py":      module,
		info + "METADATA": "Metadata-Version: 2.1\nName: " + strings.ReplaceAll(name, "_", "-") + "\nVersion: 1.0\n",
		info + "WHEEL":    "Wheel-Version: 1.0\nGenerator: hand\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
		info + "RECORD":   "",
	}
	if len(scripts) > 0 {
		files[info+"entry_points.txt"] = "[console_scripts]\n" + strings.Join(scripts, "\n") + "\n"
	}
	files[info+"RECORD"] = strings.Join(slices.Sorted(maps.Keys(files)), ",,\n") + ",,\n"
	return Zip(files)
}
