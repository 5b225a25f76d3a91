"""The HTTP face of an engine: OpenAI and native protocols over FastAPI.

`radixrt.server.app.create_app` makes the application, `radixrt.server.serve.serve` binds, loads and serves. Nothing is
imported here: the client shares only `native_types`, and must not pay for a web framework.
"""
