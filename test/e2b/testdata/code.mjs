// SPDX-License-Identifier: Apache-2.0

// What programs do with the code interpreter of E2B. Each step prints "ok NAME", or "FAILED NAME" and why.
import assert from 'node:assert/strict'
import { Sandbox } from '@e2b/code-interpreter'

const steps = []
const step = (name, run) => steps.push([name, run])

let sbx
step('create', async () => { sbx = await Sandbox.create({ timeoutMs: 600_000, envs: { OF_SANDBOX: 's' } }) })
step('runCode', async () => {
  const r = await sbx.runCode('print("out")\n1 + 1')
  assert.deepEqual([r.text, r.logs.stdout.join(''), r.error], ['2', 'out\n', undefined])
})
step('runCode keeps its state', async () => {
  await sbx.runCode('x = 41')
  assert.equal((await sbx.runCode('x + 1')).text, '42')
})
step('runCode with an error', async () => {
  const r = await sbx.runCode('def f():\n  return 1 / 0\nf()')
  assert.equal(r.error.name, 'ZeroDivisionError')
  assert.match(r.error.traceback, /return 1 \/ 0/)
})
step('runCode callbacks', async () => {
  const seen = []
  await sbx.runCode('import sys\nprint("a")\nprint("b", file=sys.stderr)\n3', {
    onStdout: m => seen.push('out ' + m.line), onStderr: m => seen.push('err ' + m.line), onResult: r => seen.push('result ' + r.text),
  })
  assert.deepEqual(seen.sort(), ['err b\n', 'out a\n', 'result 3'])
})
step('runCode variables', async () => {
  assert.equal((await sbx.runCode('import os; os.environ["OF_SANDBOX"] + os.environ["OF_RUN"]', { envs: { OF_RUN: 'r' } })).text, 'sr')
  assert.equal((await sbx.runCode('os.environ.get("OF_RUN")')).text, undefined)
})
step('runCode results', async () => {
  const r = await sbx.runCode('class T:\n  def _repr_html_(self): return "<b>x</b>"\n  def __repr__(self): return "T"\nT()')
  assert.deepEqual([r.results[0].html, r.text], ['<b>x</b>', 'T'])
})
step('runCode for too long', async () => {
  await assert.rejects(sbx.runCode('while True: pass', { timeoutMs: 1500 }))
  assert.equal((await sbx.runCode('"alive"')).text, 'alive')
})
step('contexts', async () => {
  const context = await sbx.createCodeContext({ cwd: '/tmp' })
  assert.equal((await sbx.runCode('import os; os.getcwd()', { context })).text, '/tmp')
  await sbx.runCode('y = 7', { context })
  assert.equal((await sbx.runCode('y')).error.name, 'NameError')
  assert.ok((await sbx.listCodeContexts()).some(c => c.id === context.id))
  await sbx.restartCodeContext(context)
  assert.equal((await sbx.runCode('y', { context })).error.name, 'NameError')
  await sbx.removeCodeContext(context)
  assert.ok(!(await sbx.listCodeContexts()).some(c => c.id === context.id))
})
step('commands and code share files', async () => {
  await sbx.runCode('open("shared.txt", "w").write("by code")')
  assert.equal(await sbx.files.read('shared.txt'), 'by code')
})
step('kill', async () => assert.equal(await sbx.kill(), true))

for (const [name, run] of steps) {
  try {
    await run()
    console.log('ok ' + name)
  } catch (e) {
    console.log('FAILED ' + name + ': ' + (e.stack || e))
    if (name === 'create') break
  }
}
process.exit(0)
