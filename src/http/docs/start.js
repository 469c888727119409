// Draws the document this gateway serves; asks nobody else, not even a validator.
SwaggerUIBundle({
  url: "openapi.yaml",
  dom_id: "#docs",
  deepLinking: true,
  displayRequestDuration: true,
  validatorUrl: null,
});
