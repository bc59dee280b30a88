// SPDX-License-Identifier: Apache-2.0

// The API description that boxd serves is openapi.yaml, which people edit, converted to JSON.

package relay

import _ "embed"

//go:embed openapi.json
var document string

// openAPI returns the OpenAPI document as JSON.
func openAPI() string { return document }
