"""JSON for programs, under /api/: routes (`routes`), their answers (`answering`), and the OpenAPI file (`openapi`)."""
